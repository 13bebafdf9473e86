#include "sim/trainer.hpp"

#include <algorithm>
#include <utility>

#include "sim/world.hpp"

namespace ckpt::sim {

using namespace core;

namespace {
constexpr TimeMs connect_retry_ms = 100;
constexpr TimeMs restore_timeout_ms = 25000;
constexpr std::uint64_t within_update = 0x5555;  // what its state differs by while an update changes it
}  // namespace

Trainer::Trainer(World& world, std::uint64_t its_instance, int its_launch, Rank its_rank, Rank its_world_size,
                 NodeId its_node, const std::optional<Kept>& its_kept)
    : instance(its_instance),
      launch(its_launch),
      rank(its_rank),
      world_size(its_world_size),
      main_shard(world.settings.main_shard(rank, world.launcher.split())),
      node(its_node),
      world_(world),
      kept_(its_kept) {
  main_ = mix(hash_of(main_shard), mix(hash_of("initial"), static_cast<std::uint64_t>(launch)));
  private_ = mix(hash_of(world.settings.private_shard(rank)), static_cast<std::uint64_t>(launch));
  if (!kept_) return;
  main_ = kept_->main;
  private_ = kept_->private_;
}

Machine& Trainer::machine() { return world_.machines.at(node); }

Control* Trainer::control() {
  auto& controls = machine().arena.controls;
  const auto found = controls.find(rank);
  return found == controls.end() || found->second.instance != instance ? nullptr : &found->second;
}

bool Trainer::is_fenced() {
  const Control* words = control();
  return words != nullptr && words->fenced;
}

void Trainer::later(TimeMs delay_ms, std::function<void()> action) {
  world_.event_queue.after(delay_ms, [&world = world_, id = instance, action = std::move(action)] {
    Trainer* trainer = world.trainer(id);
    if (trainer == nullptr) return;
    if (trainer->is_halted()) {
      trainer->postponed_.push_back(action);
    } else {
      action();
    }
  });
}

void Trainer::freeze() {
  halt_ = Halt::frozen;
  world_.watch_check.halted(*this);
}

void Trainer::suspend() {
  halt_ = Halt::suspended;
  world_.watch_check.halted(*this);
}

void Trainer::spin() {
  halt_ = Halt::spinning;
  world_.watch_check.halted(*this);
}

char Trainer::process_state() const {
  if (halt_ == Halt::frozen) return 'T';
  return halt_ == Halt::spinning ? 'R' : 'S';
}

void Trainer::wake() {
  halt_ = Halt::none;
  obeys_since_ = world_.event_queue.now();
  world_.watch_check.went_on(*this);
  for (auto actions = std::exchange(postponed_, {}); !actions.empty(); actions.pop_front()) later(0, actions.front());
  // Its threads run on in any order.
  for (auto looks = std::exchange(postponed_looks_, {}); !looks.empty(); looks.pop_front())
    watch_later(world_.random.between(0, 1), looks.front());
}

void Trainer::die() {
  if (!alive_) return;
  alive_ = false;
  world_.trainer_died(*this);
}

void Trainer::quit(const char* why) {
  world_.trace.line(world_.event_queue.now(), [&] { return text("trainer ", rank, " ends: ", why); });
  die();
}

void Trainer::close(const char* why) {
  is_closed_ = true;
  quit(why);
}

void Trainer::corrupt_state() {
  main_ ^= 1;
  is_corrupted_ = true;
  world_.halt_check.corrupted(*this);
}

// ---- Connecting ----

void Trainer::start() {
  later(world_.random.between(0, kept_ ? 20 : 300), [this] { connect(); });
  later(restore_timeout_ms, [this] {
    if (stage_ == Stage::training) return;
    if (world_.liveness_check.calm_ms() >= restore_timeout_ms) world_.invariants.restore_hangs(*this);
    quit("restore timed out");
  });
}

void Trainer::connect() {
  if (agent_id_ != 0) return;
  Agent* agent = world_.agent_on(node);
  if (agent == nullptr) {
    // If no agent runs, a new trainer starts one, as the engine does. A trainer that had an agent waits for it.
    if (stage_ != Stage::training) world_.start_agent(machine());
    later(connect_retry_ms, [this] { connect(); });
    return;
  }
  agent->later(world_.random.between(0, 2), [id = instance](Agent& a) { a.greet(id, 0); });
  later(connect_retry_ms * 30, [this] { connect(); });
}

void Trainer::attached(std::uint64_t agent_id) {
  agent_id_ = agent_id;
  if (stage_ == Stage::training) return;
  stage_ = Stage::waiting;
  later(world_.random.between(0, 100), [this, agent_id] {
    if (agent_id_ != agent_id || stage_ != Stage::waiting) return;
    Agent* agent = world_.agent_on(node);
    if (agent == nullptr) return agent_died();  // it had died before its answer came
    agent->later(0, [id = instance](Agent& a) { a.ask_restore(id); });
    has_asked_ = true;
  });
}

void Trainer::claimed_by_another() {
  later(1, [this] { quit("its rank is claimed by a living trainer"); });
}

void Trainer::agent_died() {
  agent_id_ = 0;
  reserving_ = false;
  if (stage_ != Stage::training) stage_ = Stage::connecting;
  later(world_.random.between(0, 50), [this] { connect(); });
}

// ---- Restoring ----

void Trainer::restore_ready(const RestoreReady& ready) {
  later(0, [this, ready, agent_id = agent_id_] {
    if (agent_id_ != agent_id || stage_ != Stage::waiting) return;
    stage_ = Stage::reading;
    incarnation_ = ready.incarnation;
    if (dies_in_restore_)
      return later(world_.random.between(0, 200), [this] { quit("it is killed while it restores"); });
    later(world_.random.between(1, 200), [this, ready, agent_id] {
      if (agent_id_ == agent_id && stage_ == Stage::reading) read(ready, agent_id);
    });
  });
}

void Trainer::read(const RestoreReady& ready, std::uint64_t agent_id) {
  if (kept_ && ready.decision.verdict != Verdict::restore) {
    if (launch == world_.launcher.launch()) world_.launcher.restart();  // as ckptrun does: all begin anew
    return quit("nothing is stored, and it has trained");
  }
  std::vector<SlotRef> corrupt;
  if (ready.decision.verdict == Verdict::restore) {
    const auto bytes_of = [&](const RestoreSource& source) {
      const Slot& slot = *machine().arena.find(source.slot);
      if (!slot.intact()) corrupt.push_back(source.slot);
      return slot.bytes;
    };
    const auto of = static_cast<std::uint32_t>(ready.main.size());
    std::vector<std::uint64_t> states;  // for each part, the state of the whole shard that it is a part of
    for (std::uint32_t i = 0; i < of; ++i) states.push_back(part_bytes(bytes_of(ready.main[i]), i, of));
    // What the rank computes of the shards that it takes over stands for the tensors that it cuts anew.
    std::uint64_t taken = rank;
    for (const RestoreSource& source : ready.taken) taken = mix(taken, bytes_of(source));
    const std::uint64_t private_bytes = bytes_of(ready.private_);
    if (states.empty()) states.push_back(mix(taken, private_bytes));
    if (corrupt.empty()) {
      main_ = states.front();
      for (const std::uint64_t state : states) {
        if (state != states.front()) main_ = mix(main_, state);  // the parts come from ranks with different states
      }
      // The engine compares, and loads what differs. Tensors of shards that it takes over are cut anew in any case.
      if (kept_ && !ready.main.empty() && kept_->live == ready.decision.checkpoint && !kept_->is_corrupted)
        world_.halt_check.kept(*this, kept_->live, kept_->main);
      private_ = private_bytes;
      if (ready.private_.slot.shard != world_.settings.private_shard(rank)) private_ = mix(private_, rank);
      iteration_ = ready.decision.checkpoint.iteration();
      restored_ = ready.decision.checkpoint;
    }
  }
  Agent* agent = world_.agent(node, agent_id);
  agent->later(0, [id = instance, corrupt](Agent& a) { a.end_restore(id, corrupt); });
  if (!corrupt.empty()) {
    stage_ = Stage::waiting;
    return;
  }
  world_.invariants.restored(*this, ready);
  share_ = ready.share;
  stage_ = Stage::training;
  obeys_since_ = world_.event_queue.now();
  // Not rank 0's, and not shards that it has taken over.
  const bool has_own = ready.private_.slot.shard == world_.settings.private_shard(rank) && !ready.main.empty();
  if (ready.decision.verdict == Verdict::restore && has_own)
    world_.halt_check.restored(*this, ready.decision.checkpoint);
  newest_captured_ = iteration_;
  rest();
  world_.launcher.restored(*this);
  compute();
}

void Trainer::restore_failed(const RestoreFailed& failed) {
  later(0, [this, failed] {
    if (failed.error == RestoreError::lost) world_.launcher.state_is_lost();
    if (failed.error == RestoreError::mismatch) heed(failed.text);
    quit("restore failed");
  });
}

// Does what an operator does who reads this sentence.
void Trainer::heed(const std::string& refusal) {
  constexpr std::string_view before = "are of a job of ";
  const auto found = refusal.find(before);
  if (found != std::string::npos && launch == world_.launcher.launch())
    world_.launcher.restart_with(static_cast<Rank>(std::stoul(refusal.substr(found + before.size()))),
                                 world_.launcher.split());
}

// ---- Training ----

void Trainer::compute() {
  if (const TimeMs pause_ms = std::exchange(pauses_for_ms_, 0); pause_ms != 0) {
    set_paused(true);
    later(pause_ms, [this] {
      set_paused(false);
      compute();
    });
    return;
  }
  const TimeMs typical = world_.settings.iteration_ms;
  const TimeMs takes_ms = world_.random.between(typical * 9 / 10, typical) * slowness_;
  compute_part(iteration_ + 1, 0, takes_ms / (1 + world_.communications.exchanges(rank)));
}

// Computes, communicates, and so on. The last communication is that of the gradients.
void Trainer::compute_part(std::int64_t k, std::uint32_t number, TimeMs takes_ms) {
  part_takes_ms_ = takes_ms;
  later(takes_ms, [this, k, number] {
    mark(schedule::Mark::Kind::begin);
    if (number == world_.communications.exchanges(rank)) {
      world_.launcher.arrived(*this, k);
    } else {
      world_.communications.join(*this, k, number);
    }
  });
}

void Trainer::communicated(std::int64_t k, std::uint32_t number) {
  later(0, [this, k, number] {
    mark(schedule::Mark::Kind::end);
    compute_part(k, number + 1, part_takes_ms_);
  });
}

void Trainer::mark(schedule::Mark::Kind kind) {
  Control* words = control();
  if (!world_.settings.watches || words == nullptr) return;
  const TimeMs at_ms = world_.event_queue.now() + machine().clock_offset_ms;
  words->mark({kind, 1e-3 * static_cast<double>(at_ms)});
  world_.watch_check.marked(*this, kind);
}

// First calls before_update(), which completes and seals the running capture. An update without before_update() tears
// the captured state. The next snapshot() notices that.
void Trainer::update(std::int64_t k) {
  later(world_.random.between(0, 2), [this, k] {
    mark(schedule::Mark::Kind::end);
    begin_update(k);
  });
}

void Trainer::begin_update(std::int64_t k) {
  if (!passes_gate(k)) return;
  TimeMs left = 0;
  base_.reset();
  if (capture_ != 0 && !std::exchange(forgetful_, false)) {
    base_ = CheckpointId(incarnation_, captured_iteration_);
    left = std::max<TimeMs>(0, capture_ends_at_ - world_.event_queue.now());
    later(left, [this, capture = capture_] { seal_next(capture, 0); });
  }
  const TimeMs takes_ms = left + world_.random.between(2, world_.settings.update_ms);
  if (world_.settings.can_halt()) {
    // The passes have changed its own state, and the update does not.
    private_ = mix(private_, mix(static_cast<std::uint64_t>(k), static_cast<std::uint64_t>(launch)));
    later(left, [this, k] { prepare_own(k); });
    later(left + (takes_ms - left) / 2, [this] { main_ ^= within_update; });
  }
  if (std::exchange(dies_in_update_, false))
    later(world_.random.between(0, takes_ms), [this] { quit("it is killed within its update"); });
  later(takes_ms, [this, k] { finish_update(k); });
}

void Trainer::finish_update(std::int64_t k) {
  if (world_.settings.can_halt()) main_ ^= within_update;
  const auto start = static_cast<std::uint64_t>(launch);
  const auto step = mix(static_cast<std::uint64_t>(k), world_.settings.can_rejoin() ? mix(start, incarnation_) : start);
  main_ = mix(main_, step);
  record_.reset();
  if (base_) record_ = UpdateRecord{*base_, step, disturbed_ == 0};
  if (disturbed_ > 0) {
    --disturbed_;
    main_ = mix(main_, hash_of("clamp"));
  }
  if (!world_.settings.can_halt()) private_ = mix(private_, step);
  iteration_ = k;
  snapshot(k);
  rest();
  if (world_.settings.can_halt()) private_ = mix(private_, hash_of("forward"));  // as random generators do
  compute();
}

void Trainer::ring() {
  if (Agent* agent = world_.agent_on(node)) {
    agent->later(world_.random.between(0, 3), [r = rank](Agent& a) { a.read_words(r); });
  }
}

void Trainer::snapshot(std::int64_t k) {
  Control* words = control();
  if (words == nullptr) return;  // this trainer is no longer attached to the arena
  if (words->fenced) {
    later(1, [this] { quit("superseded"); });
    return;
  }
  capture_ = 0;  // a capture that still runs is torn, and its grant stays unused
  words->attempted = k;
  words->capturing = -1;
  mark(schedule::Mark::Kind::iteration);
  if (!words->reserved.empty() && k >= words->resume_at) {
    if (!is_due(k))
      seal_small(*words, k);
    else if (words->grant_is_open())
      start_capture(*words, k);
  }
  if (words->reserved.empty() && !reserving_ && agent_id_ != 0) {
    reserving_ = true;
    world_.agent_on(node)->later(0, [id = instance](Agent& a) { a.reserve(id); });
  }
  ring();
}

bool Trainer::is_due(std::int64_t k) const {
  return !world_.settings.can_halt() || k % world_.settings.core.capture_every == 0;
}

// From now on the slot is half written.
void Trainer::empty(const SlotRef& ref) {
  world_.invariants.capturing(machine(), ref, instance);
  Slot& slot = *machine().arena.find(ref);
  slot.sealed = false;
  slot.record.reset();
  slot.bytes = world_.random.next();
}

// The rest of the iteration may follow late.
void Trainer::seal_small(Control& words, std::int64_t k) {
  if (words.own_slots().empty()) return;
  captured_private_ = private_;
  captured_iteration_ = k;
  words.capturing = k;
  words.sealing = CheckpointId(incarnation_, k);
  may_follow_ = keep_own(words, k);
}

// As src/client/capture does: not where its newest private shard is, unless that is of this iteration.
bool Trainer::keep_own(Control& words, std::int64_t k) {
  const auto own = words.own_slots();
  if (own.empty()) return false;
  const bool is_here = own_slot_ && std::find(own.begin(), own.end(), *own_slot_) != own.end();
  if (is_here && own_iteration_ == k) return true;
  const SlotRef slot = is_here && own.front() == *own_slot_ ? own.back() : own.front();
  empty(slot);
  own_slot_ = slot;
  own_iteration_ = k;
  seal(slot, private_, k);
  return true;
}

// Before the update of iteration k, beside the private shard of the last one.
void Trainer::prepare_own(std::int64_t k) {
  Control* words = control();
  if (words == nullptr || words->fenced || words->reserved.empty()) return;
  const auto own = words->own_slots();
  const auto free = std::find_if(own.begin(), own.end(), [&](const SlotRef& slot) { return slot != own_slot_; });
  if (free == own.end()) return;
  const SlotRef& slot = *free;
  empty(slot);
  own_slot_ = slot;
  own_iteration_ = k;
  seal(slot, private_, k);
}

void Trainer::start_capture(Control& words, std::int64_t k) {
  for (const SlotRef& ref : words.slots) {
    if (ref.shard != words.private_shard || !world_.settings.can_halt()) empty(ref);
  }
  capture_ = ++captures_;
  captured_main_ = main_;
  captured_record_ = world_.settings.recomputes ? record_ : std::nullopt;
  captured_private_ = private_;
  captured_iteration_ = k;
  capture_ends_at_ = world_.event_queue.now() + world_.random.between(1, world_.settings.capture_ms);
  words.capturing = k;
  words.sealing = CheckpointId(incarnation_, k);
  if (!world_.settings.can_halt()) return;
  keep_own(words, k);
  capture_own_ = own_slot_;
}

// To seal a capture takes one store for each slot and one more. The trainer can die or freeze between any two of them.
void Trainer::seal_next(std::uint64_t capture, std::size_t slot) {
  Control* words = control();
  if (capture != capture_ || words == nullptr) return;
  const SlotRef& ref = words->slots[slot];
  const ShardPart part = parse_part(ref.shard);
  const bool is_private = ref.shard == words->private_shard;
  const auto step = [this](TimeMs delay_ms, std::function<void()> action) {
    captures_late() ? watch_later(delay_ms, std::move(action)) : later(delay_ms, std::move(action));
  };
  if (!is_private || !world_.settings.can_halt())
    seal(ref, is_private ? captured_private_ : part_bytes(captured_main_, part.index, part.of), captured_iteration_);
  if (!is_private && part.of == 1) machine().arena.find(ref)->record = captured_record_;
  if (slot + 1 < words->slots.size()) {
    // All of this happens within the time that before_update() takes.
    step(slot == 0 ? world_.random.between(0, 1) : 0, [=, this] { seal_next(capture, slot + 1); });
  } else {
    step(0, [this, capture] { use_grant(capture); });
  }
}

void Trainer::use_grant(std::uint64_t capture) {
  Control* words = control();
  if (capture != capture_ || words == nullptr) return;
  capture_ = 0;
  words->used_spare = world_.settings.can_halt() && capture_own_ == words->spare;
  words->used_grant = words->grant;
  words->capturing = -1;
  for (const SlotRef& ref : words->slots) {
    if (ref.shard != words->private_shard) machine().arena.find(ref)->granted_to = 0;
  }
  machine().arena.find(words->own_slot())->granted_to = 0;
  newest_captured_ = captured_iteration_;
  ring();
  if (captures_late()) end_freeze(true);
}

void Trainer::seal(const SlotRef& ref, std::uint64_t bytes, std::int64_t k) {
  world_.invariants.capturing(machine(), ref, instance);
  Slot& slot = *machine().arena.find(ref);
  PieceInfo& header = slot.header;
  header.shard = ref.shard;
  header.checkpoint = CheckpointId(incarnation_, k);
  header.length_bytes = 1000 + hash_of(ref.shard) % 5 * 100000;
  header.layout_bytes = 10;
  header.root_digest = bytes;
  header.world_size = world_size;
  slot.bytes = bytes;
  slot.sealed = true;
  if (world_.settings.can_halt()) world_.halt_check.sealed(*this, header);
  world_.invariants.captured(header);
}

}  // namespace ckpt::sim
