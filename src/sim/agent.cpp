#include "sim/agent.hpp"

#include <algorithm>
#include <utility>

#include "sim/world.hpp"

namespace ckpt::sim {

using namespace core;

namespace {
constexpr TimeMs poll_ms = 500;            // how often it reads the store's records
constexpr TimeMs claim_timeout_ms = 2000;  // how long a new trainer waits for a living one of its rank to end
constexpr TimeMs claim_poll_ms = 200;

RankWatch::Limits watch_limits(const Settings& settings) {
  RankWatch::Limits limits;
  limits.deadline.floor_s = 1e-3 * static_cast<double>(settings.hang_floor_ms);
  limits.deadline.factor = settings.core.hang_factor;
  const TimeMs look_every_ms = settings.core.report_ms / 2;
  limits.look_every_s = 1e-3 * static_cast<double>(look_every_ms);
  return limits;
}
}  // namespace

Agent::Agent(World& world, Machine& machine, std::uint64_t id)
    : world_(world),
      machine_(machine),
      id_(id),
      node_(configure(world, machine), id, attach(swept(world, machine.arena), world.event_queue.now())),
      watch_(watch_limits(world.settings)) {
  for (const auto& [rank, control] : machine.arena.controls) {
    if (control.grant_is_open()) open_grants_.insert(rank);
  }
  machine.arena.for_each([&](const SlotRef&, const Slot& slot) {
    if (slot.counted) world.invariants.counted(machine, slot.header);
  });
}

// Removes from the arena the trainers that no longer live.
Arena& Agent::swept(World& world, Arena& arena) {
  std::erase_if(arena.controls, [&](const auto& entry) { return world.trainer(entry.second.instance) == nullptr; });
  return arena;
}

Config Agent::configure(const World& world, const Machine& machine) {
  Config config = world.settings.core;
  config.node = machine.id;
  config.arena_id = machine.arena.id;
  if (world.settings.racks)
    config.domain = "row" + std::to_string(machine.id / 4) + "/rack" + std::to_string(machine.id / 2);
  return config;
}

// Finds in the arena what the previous agent knew. If a grant is still open, its slots belong to its writer.
Recovered Agent::attach(Arena& arena, TimeMs now) {
  Recovered recovered;
  recovered.highest_commit = arena.highest_commit;
  recovered.newest_seen = arena.newest_seen;
  recovered.newest_damaged = arena.newest_damaged;
  recovered.epoch = arena.epoch;
  std::set<SlotRef> granted;
  for (const auto& [rank, control] : arena.controls) {
    const auto own = control.own_slots();
    granted.insert(own.begin(), own.end());
    if (control.grant_is_open()) {
      recovered.granted.push_back({rank, control.slots, control.spare});
      granted.insert(control.slots.begin(), control.slots.end());
    } else if (!own.empty()) {
      recovered.granted.push_back({rank, {}, own.front()});
    }
  }
  arena.for_each([&](const SlotRef& ref, Slot& slot) {
    slot.counted = slot.findable() && !granted.contains(ref);
    slot.counted_since = now;
    slot.draining = false;
    slot.readers = 0;
    slot.filled_by = 0;
    recovered.slots.push_back({ref, slot.header, slot.counted});
  });
  return recovered;
}

void Agent::start() {
  later(world_.random.between(0, 20), [](Agent& agent) { agent.tick(); });
  later(world_.random.between(0, 20), [](Agent& agent) { agent.poll(); });
}

void Agent::tick() {
  const TimeMs period = world_.settings.core.report_ms / 2;
  later(period - world_.random.between(0, period / 5), [](Agent& agent) { agent.tick(); });
  look_at_ranks();
  handle(Tick{});
}

void Agent::poll() {
  later(poll_ms - world_.random.between(0, poll_ms / 5), [](Agent& agent) { agent.poll(); });
  world_.store.read_leader(machine_.id, store_answer());
  world_.store.read_incarnation(machine_.id, store_answer());
}

std::function<void(const Event&)> Agent::store_answer() {
  return [&world = world_, node = machine_.id, id = id_](const Event& read) {
    Agent* agent = world.agent(node, id);
    if (agent == nullptr) return;
    if (const auto* incarnation_record = std::get_if<IncarnationRecordRead>(&read))
      world.invariants.incarnation_read(incarnation_record->record);
    agent->receive(read);
  };
}

// ---- Input ----

void Agent::later(TimeMs delay_ms, std::function<void(Agent&)> input) {
  world_.event_queue.after(delay_ms, [&world = world_, node = machine_.id, id = id_, input = std::move(input)] {
    if (Agent* agent = world.agent(node, id)) agent->take(input);
  });
}

void Agent::take(std::function<void(Agent&)> input) {
  if (frozen_) {
    inbox_.push_back(std::move(input));
  } else {
    input(*this);
  }
}

void Agent::receive(Event event) {
  take([event = std::move(event)](Agent& agent) { agent.handle(event); });
}

// An agent that is frozen again before it wakes has had one pause, and wakes once.
void Agent::freeze() {
  if (!std::exchange(frozen_, true)) frozen_at_ = world_.event_queue.now();
}

void Agent::wake() {
  if (!std::exchange(frozen_, false)) return;
  world_.agent_paused(machine_, frozen_at_);
  world_.watch_check.agent_disturbed(machine_.id, 0);
  while (!frozen_ && !inbox_.empty() && world_.agent(machine_.id, id_) == this) {
    const auto input = std::move(inbox_.front());
    inbox_.pop_front();
    input(*this);
  }
}

void Agent::handle(const Event& event) {
  if (world_.agent(machine_.id, id_) != this) return;  // it crashed earlier in this input
  world_.trace.mark(mix(static_cast<std::uint64_t>(world_.event_queue.now()), event.index() * 64 + machine_.id));
  world_.trace.line(world_.event_queue.now(), [&] { return text("node ", machine_.id, " <- ", describe(event)); });
  world_.invariants.before(machine_, node_, event);
  const Effects effects = node_.handle(event, world_.event_queue.now() + machine_.clock_offset_ms);
  world_.invariants.after(machine_, node_, event);
  for (const Effect& effect : effects) {
    if (crash_after_effects_ == 0 && effects.size() > 1) {
      world_.crash_agent(machine_);
      return;
    }
    if (crash_after_effects_ > 0 && effects.size() > 1) --crash_after_effects_;
    carry_out(effect);
  }
  tick_when_wanted();
}

void Agent::tick_when_wanted() {
  const auto wanted = node_.tick_wanted_at();
  if (!wanted || *wanted == wanted_tick_at_) return;
  wanted_tick_at_ = *wanted;
  later(*wanted - machine_.clock_offset_ms - world_.event_queue.now(), [](Agent& agent) { agent.handle(Tick{}); });
}

// ---- Trainers ----

Agent::TrainerSession* Agent::session_of(std::uint64_t instance) {
  for (auto& [rank, session] : sessions_) {
    if (session.instance == instance) return &session;
  }
  return nullptr;
}

void Agent::greet(std::uint64_t instance, TimeMs waited_ms) {
  Trainer* trainer = world_.trainer(instance);
  if (trainer == nullptr) return;
  for (Trainer* other : world_.trainers_on(machine_.id)) {
    if (other->rank != trainer->rank || other == trainer) continue;
    if (other->is_frozen()) {
      other->die();
    } else if (waited_ms >= claim_timeout_ms) {
      trainer->claimed_by_another();
      return;
    } else {
      later(claim_poll_ms, [=](Agent& agent) { agent.greet(instance, waited_ms + claim_poll_ms); });
      return;
    }
  }
  const Rank rank = trainer->rank;
  if (session_of(instance) != nullptr) return;  // it asked twice
  if (sessions_.contains(rank)) end_session(rank);
  Control& control = machine_.arena.controls[rank];
  const std::string& main_shard = trainer->main_shard;
  const std::string private_shard = world_.settings.private_shard(rank);
  if (control.instance != instance) {
    control = Control{};
    control.instance = instance;
    control.main_shard = main_shard;
    control.private_shard = private_shard;
    open_grants_.erase(rank);
  }
  sessions_[rank].instance = instance;
  sessions_[rank].marks_read = control.marks_made;
  watch_.add(rank, trainer->incarnation());
  world_.watch_check.watched(instance);
  trainer->attached(id_);
  handle(TrainerHello{rank, instance, trainer->incarnation(), trainer->world_size, main_shard, private_shard,
                      world_.settings.core.capture_every, world_.settings.core.halts});
  if (trainer->incarnation() == 0) return;
  if (!control.reserved.empty()) handle(segments_of(rank, control.reserved));
  read_words(rank);
}

// What a trainer that has ended sealed in the slots of its grant. `is_whole`: it had sealed all of them.
void Agent::take_left_behind(Rank rank, bool is_whole) {
  const Control& control = machine_.arena.controls.at(rank);
  LeftBehind left{rank, {}};
  std::vector<SlotRef> slots = control.own_slots();
  if (open_grants_.contains(rank)) {
    slots = control.slots;
    if (control.spare) slots.push_back(*control.spare);
  }
  for (const SlotRef& ref : slots) {
    Slot* const found = machine_.arena.find(ref);
    if (found == nullptr) continue;
    Slot& slot = *found;
    const bool is_newer = slot.header.checkpoint.incarnation() == control.sealing.incarnation() &&
                          slot.header.checkpoint.iteration() >= control.attempted && ref.shard == control.private_shard;
    if (slot.counted || !slot.sealed || !(is_whole || slot.header.checkpoint == control.sealing || is_newer)) continue;
    slot.counted = true;
    slot.counted_since = world_.event_queue.now();
    world_.invariants.counted(machine_, slot.header);
    left.pieces.emplace_back(ref, slot.header);
  }
  if (!left.pieces.empty()) handle(left);
}

void Agent::end_session(Rank rank) {
  if (world_.settings.can_halt()) {
    read_words(rank);  // what it did last
    take_left_behind(rank, false);
    if (world_.agent(machine_.id, id_) != this) return;  // this agent died meanwhile
  }
  const TrainerSession session = sessions_.at(rank);
  sessions_.erase(rank);
  open_grants_.erase(rank);
  machine_.arena.controls.erase(rank);
  for (const SlotRef& ref : session.reads) unpin(ref);
  handle(TrainerExited{rank, session.instance});
}

void Agent::trainer_ended(std::uint64_t instance, bool died) {
  for (const auto& [rank, session] : sessions_) {
    if (session.instance != instance) continue;
    const Rank its_rank = rank;
    see_rank(its_rank);  // its last marks
    died ? watch_.died(its_rank, local_s()) : watch_.remove(its_rank);
    end_session(its_rank);
    look_at_ranks();
    return;
  }
  // Trainers that have not connected to this agent again since the previous one died.
  for (const auto& [rank, control] : machine_.arena.controls) {
    if (control.instance != instance) continue;
    const Rank its_rank = rank;
    if (world_.settings.can_halt())
      take_left_behind(its_rank, open_grants_.contains(its_rank) && !control.grant_is_open());
    open_grants_.erase(its_rank);
    machine_.arena.controls.erase(its_rank);
    handle(TrainerExited{its_rank, instance});
    return;
  }
}

void Agent::ask_restore(std::uint64_t instance) {
  TrainerSession* session = session_of(instance);
  const Trainer* trainer = world_.trainer(instance);
  if (session == nullptr || trainer == nullptr) return;
  session->waits_for_restore = true;
  watch_.joined(trainer->rank, 0);
  handle(RestoreAsked{trainer->rank, false, world_.settings.resizes});
}

void Agent::end_restore(std::uint64_t instance, const std::vector<SlotRef>& corrupt) {
  TrainerSession* session = session_of(instance);
  const Trainer* trainer = world_.trainer(instance);
  if (session == nullptr || trainer == nullptr) return;
  for (const SlotRef& ref : std::exchange(session->reads, {})) unpin(ref);
  if (corrupt.empty()) {
    handle(RestoreDone{trainer->rank});
    return;
  }
  for (const SlotRef& ref : corrupt) verify(ref);
  ask_restore(instance);
}

void Agent::report_trouble(std::uint64_t instance) {
  const Trainer* trainer = world_.trainer(instance);
  if (session_of(instance) != nullptr && trainer != nullptr) handle(TroubleReported{trainer->rank});
}

void Agent::reserve(std::uint64_t instance) {
  later(world_.random.between(5, 150), [=](Agent& agent) {
    Trainer* trainer = agent.world_.trainer(instance);
    if (trainer == nullptr || agent.session_of(instance) == nullptr) return;
    agent.see_rank(trainer->rank);
    agent.watch_.interrupted(trainer->rank, agent.local_s());
    agent.world_.watch_check.interrupted(*trainer);
    Control& control = agent.machine_.arena.controls[trainer->rank];
    control.reserved = parts_of(control.main_shard, trainer->share());
    control.reserved.push_back(control.private_shard);
    for (const std::string& shard : control.reserved) {
      const std::size_t slots = agent.world_.settings.core.local_slots + agent.spare_slots(trainer->rank, shard);
      agent.machine_.arena.make_segment(trainer->rank, shard, slots);
      Segment& segment = agent.machine_.arena.segments.at({trainer->rank, shard});
      segment.resize(std::max(segment.size(), slots));
    }
    agent.handle(agent.segments_of(trainer->rank, control.reserved));
  });
}

SegmentsReady Agent::segments_of(Rank rank, const std::vector<std::string>& shards) const {
  std::size_t slots = SIZE_MAX;
  std::size_t private_slots = 0;
  for (const std::string& shard : shards) {
    const std::size_t there = machine_.arena.segments.at({rank, shard}).size(), spare = spare_slots(rank, shard);
    if (spare != 0) private_slots = there;
    slots = std::min(slots, there - spare);
  }
  return {rank, shards, static_cast<std::uint8_t>(slots), static_cast<std::uint8_t>(private_slots)};
}

std::size_t Agent::spare_slots(Rank rank, const std::string& shard) const {
  return world_.settings.can_halt() && shard == world_.settings.private_shard(rank) ? 1 : 0;
}

// Posts what has changed in the trainer's control words: first a capture, then the trainer's progress.
void Agent::read_words(Rank rank) {
  const auto found = sessions_.find(rank);
  if (found == sessions_.end()) return;
  const Control& control = machine_.arena.controls[rank];
  if (control.instance != found->second.instance) return;
  if (open_grants_.contains(rank) && !control.grant_is_open()) {
    open_grants_.erase(rank);
    Captured captured{rank, {}};
    captured.in_spare = control.used_spare;
    std::vector<SlotRef> slots = control.slots;
    slots.back() = control.own_slot();
    for (const SlotRef& ref : slots) {
      Slot& slot = *machine_.arena.find(ref);
      captured.pieces.push_back(slot.header);
      slot.counted = true;
      slot.counted_since = world_.event_queue.now();
      world_.invariants.counted(machine_, slot.header);
    }
    handle(captured);
  }
  TrainerSession* session = session_of(control.instance);
  if (session == nullptr) return;
  if (session->notified_attempted != control.attempted || session->notified_capturing != control.capturing) {
    session->notified_attempted = control.attempted;
    session->notified_capturing = control.capturing;
    handle(Progress{rank, control.attempted, control.capturing});
    session = session_of(control.instance);
  }
  if (session == nullptr || session->notified_freeze == control.freeze) return;
  session->notified_freeze = control.freeze;
  handle(FreezeAnswered{rank, control.freeze});
}

// ---- Watching ----

double Agent::local_s() const {
  return 1e-3 * static_cast<double>(world_.event_queue.now() + machine_.clock_offset_ms);
}

void Agent::see_rank(Rank rank) {
  const auto found = sessions_.find(rank);
  if (!world_.settings.watches || found == sessions_.end()) return;
  TrainerSession& session = found->second;
  const auto words = machine_.arena.controls.find(rank);
  if (words == machine_.arena.controls.end() || words->second.instance != session.instance) return;
  const Control& control = words->second;
  RankWatch::Reading seen;
  const std::uint64_t oldest = control.marks_made - control.marks.size();
  seen.lost_marks = session.marks_read < oldest;
  if (!seen.lost_marks)
    seen.marks.assign(control.marks.begin() + static_cast<std::ptrdiff_t>(session.marks_read - oldest),
                      control.marks.end());
  session.marks_read = control.marks_made;
  seen.is_paused = control.is_paused;
  seen.iteration = control.attempted;
  if (const Trainer* trainer = world_.trainer(session.instance)) seen.process = trainer->process_state();
  watch_.see(rank, seen, local_s());
}

void Agent::look_at_ranks() {
  if (!world_.settings.watches) return;
  for (const auto& [rank, session] : sessions_) see_rank(rank);
  if (auto news = watch_.look(local_s())) handle(*news);
}

// ---- Transfers ----

void Agent::fetch_ended(std::uint64_t fetch, const SlotRef& ref, FetchResult result, const PieceInfo& made) {
  if (Slot* slot = machine_.arena.find(ref)) {
    slot->filled_by = 0;
    slot->counted = result == FetchResult::complete;
    slot->counted_since = world_.event_queue.now();
    if (slot->counted) world_.invariants.counted(machine_, slot->header);
  }
  handle(FetchEnded{fetch, result, {}, made});
}

void Agent::verify(const SlotRef& ref) {
  const Slot* slot = machine_.arena.find(ref);
  if (slot != nullptr && slot->counted && !slot->intact()) handle(PieceCorrupt{ref});
}

void Agent::unpin(const SlotRef& ref) {
  Slot* slot = machine_.arena.find(ref);
  if (slot == nullptr || slot->readers == 0) return;
  --slot->readers;
  release_if_idle(ref);
}

void Agent::release_if_idle(const SlotRef& ref) {
  later(world_.random.between(0, 3), [ref](Agent& agent) {
    Slot* slot = agent.machine_.arena.find(ref);
    if (slot == nullptr || !slot->draining || slot->readers > 0) return;
    slot->draining = false;
    agent.handle(SlotReleased{ref});
  });
}

}  // namespace ckpt::sim
