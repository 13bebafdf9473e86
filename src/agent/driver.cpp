#include "agent/driver.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "agent/store_poller.hpp"
#include "base/error.hpp"
#include "coord/mount_check.hpp"

namespace ckpt::agent {
namespace {

using core::NodeId;

core::Config core_config(const Options& options, bool has_sources, NodeId node, std::uint64_t arena_id) {
  core::Config config;
  config.node = node;
  config.arena_id = arena_id;
  config.protection = options.chosen_protection();
  config.strategy = options.placement;
  config.domain = options.domain;
  config.standby = options.standby;
  config.storage = !options.storage.empty() || has_sources;
  config.storage_writes = !options.storage.empty();
  config.storage_every = options.storage_every;
  config.storage_interval_ms = options.storage_interval_s * 1000;
  // Earlier than the trainers' own deadline.
  config.storage_wait_ms = std::min(options.storage_timeout_ms, options.restore_timeout_ms / 2);
  config.local_slots = static_cast<std::uint8_t>(options.own_slots);
  if (config.storage_writes) ++config.local_slots, ++config.local_slots_max;
  config.report_ms = options.heartbeat_ms;
  config.node_timeout_ms = options.node_timeout_ms;
  config.relay_from = options.relay_from;
  config.lease_ms = options.lease_ms;
  config.node_wait_ms = options.node_wait_ms;
  config.unprotected_after_ms = options.unprotected_after_ms;
  config.hang_factor = options.hang_factor;
  config.capture_every = options.capture_every;
  config.capture = static_cast<core::CaptureMode>(options.capture);
  config.halts = options.on_suspicion == OnSuspicion::halt;
  return config;
}

Segments::Limits segment_limits(const Options& options) {
  const core::Config config = core_config(options, false, 0, 0);
  return {options.arena_bytes, config.local_slots, config.local_slots_max, config.held_slots};
}

std::int64_t tick_ms(const Options& options) { return std::max<std::int64_t>(options.heartbeat_ms / 2, 1); }

core::RankWatch::Limits watch_limits(const Options& options) {
  core::RankWatch::Limits limits;
  limits.deadline.floor_s = 1e-3 * static_cast<double>(options.hang_floor_ms);
  limits.deadline.factor = options.hang_factor;
  limits.look_every_s = 1e-3 * static_cast<double>(tick_ms(options));
  return limits;
}

// Tells whether a part of the agent carries out effects of this kind, and whether it answers failed ones.
template <class Part, class Effect>
concept CarriesOut = requires(Part part, const Effect& effect) {
  part.carry_out(effect);
};
template <class Part, class Effect>
concept AnswersFailed = requires(Part part, const Effect& effect) {
  part.failed(effect, std::string());
};

// The core waits for the results of these, and only this agent can make them.
template <class Effect>
concept TriedAgain = std::is_same_v<Effect, core::DropSlot> || std::is_same_v<Effect, core::ReadAssignments>;

}  // namespace

Driver::Driver(const Parts& parts, NodeId node, std::uint64_t agent_id)
    : Driver(parts, node, agent_id, find_open_grants(parts.arena.directory(), parts.log)) {}

Driver::Driver(const Parts& parts, NodeId node, std::uint64_t agent_id, const Grants& granted)
    : parts_(parts),
      event_log_(parts.log),
      peers_({node, parts.options.node, agent_id}, parts.queue),
      segments_(parts.arena, segment_limits(parts.options), parts.index, parts.queue,
                [this](const SegmentKey& key) { return transfers_.fetches().writes_into(key); }),
      space_(parts.options.chosen_protection(), segments_, peers_, trainers_),
      pieces_({segments_, parts.index, parts.queue, parts.digests, peers_, event_log_, *this}),
      transfers_({parts.options, parts.sources, parts.arena.directory(), segments_, parts.index, parts.arriving,
                  parts.digests, parts.buffers, parts.queue, peers_, pieces_, space_, trainers_, event_log_, core_,
                  *this}),
      trainers_({parts.arena.directory(), segments_, parts.index, parts.queue, event_log_, parts.scheduler, parts.trace,
                 transfers_.replications(), *this, pieces_, space_, watch_limits(parts.options), core_},
                granted),
      core_(core_config(parts.options, !parts.sources.empty(), node, parts.arena.arena_id()), agent_id,
            recover(granted)),
      members_(parts.options.job, parts.options.member_hook, peers_, core_, event_log_, parts.log),
      health_({parts.options, core_, *this, peers_, members_, trainers_, event_log_, parts_.log}),
      arena_watch_(parts.arena, segments_, pieces_, event_log_, parts.agent),
      committed_(parts.arena.memory().highest_commit) {}

// Collects what an earlier agent left in the arena.
core::Recovered Driver::recover(const Grants& granted) {
  std::vector<core::Recovered::Granted> in_use;
  for (const auto& [rank, grant] : granted) in_use.push_back({rank, grant.slots, grant.spare});
  std::vector<std::string> notices;
  core::Recovered recovered = segments_.recover(in_use, notices);
  for (const std::string& notice : notices) event_log_.note(notice);
  return recovered;
}

void Driver::use(net::Transport& transport, StorePoller& store) {
  store_ = &store;
  local_store_ = coord::local_store(parts_.options.coordination);
  peers_.use(transport);
  transfers_.use(transport);
  requests_.emplace(parts_.queue, trainers_, parts_.arena, event_log_, parts_.agent,
                    StatusSources{parts_.options, parts_.arena, parts_.index, parts_.scheduler, parts_.trace,
                                  event_log_, peers_, segments_, transfers_, trainers_, core_, members_, health_,
                                  arena_watch_, transport, store, local_store_, committed_at_});
}

void Driver::run() {
  Deadline next_tick = Deadline::in_ms(0);
  while (!parts_.queue.closed()) {
    const auto wanted_at = core_.tick_wanted_at();
    const Deadline wanted = wanted_at ? Deadline::in_ms(*wanted_at - core_now_ms()) : next_tick;
    const Deadline replications = transfers_.replications().tick_wanted_at().value_or(next_tick);
    const auto earlier = [](Deadline a, Deadline b) { return a.at() < b.at() ? a : b; };
    const auto task = parts_.queue.take(earlier(earlier(wanted, next_tick), replications));
    if (task) run_task(*task);
    if (!task && wanted_at && wanted.passed()) run_task([this] { handle(core::Tick{}); });
    run_task([this] { transfers_.replications().tick(); });
    if (!next_tick.passed()) continue;
    next_tick = Deadline::in_ms(tick_ms(parts_.options));
    run_task([this] { tick(); });
    run_task([this] { arena_watch_.tick(); });
  }
}

void Driver::tick() {
  handle(core::Tick{});
  const std::string store_trouble = store_->trouble();
  trainers_.tick();
  if (trainers_.has_overdue_restore()) {
    const core::NodeStatus status = core_.status();
    trainers_.end_overdue_restores(what_is_missing(status, peers_, store_trouble,
                                                   coordination_doubt(status, peers_, parts_.options, local_store_),
                                                   transfers_.storage() != nullptr));
  }
  health_.tick(!store_trouble.empty());
  finish_effects();
}

// Whatever goes wrong in one task, the agent continues, because others depend on it.
void Driver::run_task(const Task& task) {
  try {
    task();
  } catch (const std::exception& error) {
    event_log_.note(bug_text(std::string("the agent goes on after an internal error: ") + error.what()));
    handling_ = false;
  }
}

void Driver::handle(core::Event event) {
  events_.push_back(std::move(event));
  if (handling_) return;  // the loop below handles it, after the effects that are being carried out
  handling_ = true;
  while (!events_.empty()) {
    const core::Event next = std::move(events_.front());
    events_.pop_front();
    for (const core::Effect& effect : core_.handle(next, core_now_ms())) carry_out_alone(effect);
  }
  handling_ = false;
}

// ---- Effects ----

// An effect that fails stops no other: the core relies on each.
void Driver::carry_out_alone(const core::Effect& effect) {
  try {
    std::visit([this](const auto& each) { carry_out(each); }, effect);
  } catch (const std::exception& error) {
    event_log_.note(bug_text(std::string("the agent goes on after an internal error: ") + error.what()));
    std::visit([this, &error](const auto& each) { failed(each, error.what()); }, effect);
  }
}

// Exactly one part carries out each kind. The compiler finds it.
template <class Effect>
void Driver::carry_out(const Effect& effect) {
  if constexpr (CarriesOut<TrainerManager, Effect>)
    trainers_.carry_out(effect);
  else if constexpr (CarriesOut<TransferOrders, Effect>)
    transfers_.carry_out(effect);
  else if constexpr (CarriesOut<LocalPieces, Effect>)
    pieces_.carry_out(effect);
  else if constexpr (CarriesOut<MemberWatch, Effect>)
    members_.carry_out(effect);
  else
    store_->carry_out(effect);
}

void Driver::carry_out(const core::Send& send) {
  if (send.to == peers_.own_node()) return handle(core::MessageArrived{send.to, send.message});
  // If a message is lost, the next heartbeat repeats it.
  peers_.send(send.to, std::visit([](const auto& content) { return core::WireMessage(content); }, send.message));
}

void Driver::carry_out(const core::Persist& persist) {
  parts_.arena.remember({persist.highest_commit, persist.newest_seen, persist.epoch, persist.newest_damaged});
  if (persist.highest_commit <= committed_) return;
  committed_ = persist.highest_commit;
  transfers_.replications().committed(committed_);
  committed_at_ = Clock::now();
  ++event_log_.counters.commits;
  const std::int64_t now_us = microseconds(*committed_at_);
  parts_.trace.add({TraceEvent::Kind::commit, now_us, now_us, 0, committed_, 0, {}, 0});
}

// Tells the core if it waits for the result. The core repeats all other effects by itself.
template <class Effect>
void Driver::failed(const Effect& effect, const std::string& why) {
  if constexpr (AnswersFailed<TransferOrders, Effect>)
    transfers_.failed(effect, why);
  else if constexpr (TriedAgain<Effect>)
    unfinished_.emplace_back(effect);
}

void Driver::finish_effects() {
  for (const core::Effect& effect : std::exchange(unfinished_, {})) carry_out_alone(effect);
}

// ---- News from other threads ----

void Driver::message_arrived(NodeId from, std::span<const std::byte> bytes) {
  auto message = core::decode(bytes);
  if (!message) return;
  parts_.queue.offer([this, from, message = std::move(*message)]() mutable { receive(from, std::move(message)); });
}

void Driver::receive(NodeId from, core::WireMessage message) {
  if (const auto* request = std::get_if<core::VerifyRequest>(&message)) {
    pieces_.verify(*request);
  } else if (const auto* update = std::get_if<core::ReplicationUpdate>(&message)) {
    transfers_.replications().received(from, *update);
  } else if (auto* report = std::get_if<core::Report>(&message)) {
    if (report->node == from) handle(core::MessageArrived{from, std::move(*report)});
  } else if (auto* directive = std::get_if<core::Directive>(&message)) {
    if (directive->leader == from) handle(core::MessageArrived{from, std::move(*directive)});
  } else if (auto* report_batch = std::get_if<core::ReportBatch>(&message)) {
    handle(core::MessageArrived{from, std::move(*report_batch)});  // the reports in it come from other nodes
  } else if (auto* directive_batch = std::get_if<core::DirectiveBatch>(&message)) {
    handle(core::MessageArrived{from, std::move(*directive_batch)});  // likewise
  }
}

void Driver::store_read(core::Event read) {
  parts_.queue.offer([this, read = std::move(read)]() mutable {
    if (const auto* incarnation_record = std::get_if<core::IncarnationRecordRead>(&read))
      log_decision(incarnation_record->record);
    handle(std::move(read));
  });
}

void Driver::log_decision(const core::IncarnationRecord& incarnation_record) {
  const core::Decision& decision = incarnation_record.decision;
  if (decision.verdict == core::Verdict::undecided || incarnation_record.incarnation == decided_incarnation_) return;
  decided_incarnation_ = incarnation_record.incarnation;
  if (decision.verdict == core::Verdict::restore)
    parts_.log->info("incarnation {} was decided: it restores iteration {} of incarnation {}",
                     incarnation_record.incarnation, decision.checkpoint.iteration(),
                     decision.checkpoint.incarnation());
  else
    parts_.log->info("incarnation {} was decided: {}", incarnation_record.incarnation,
                     decision.verdict == core::Verdict::fresh ? "a fresh start" : decision.text);
}

void Driver::nodes_read(const std::vector<coord::NodeEntry>& nodes) {
  parts_.queue.offer([this, nodes] {
    if (const auto why = peers_.take(nodes)) parts_.agent.stop(EndReason::replaced, *why);
  });
}

void Driver::remark(const std::string& sentence) {
  parts_.queue.offer([this, sentence] { event_log_.note(sentence); });
}

}  // namespace ckpt::agent
