#include "agent/driver.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "agent/trainers/claims.hpp"
#include "core/message_codec.hpp"
#include "agent/store_poller.hpp"
#include "base/error.hpp"
#include "kernels/copy_digest.hpp"

namespace ckpt::agent {
namespace {

using core::FetchResult;
using core::NodeId;
using core::SlotRef;

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
  // Before the trainers' own deadline.
  config.storage_wait_ms = std::min(options.storage_timeout_ms, options.restore_timeout_ms / 2);
  if (config.storage_writes) ++config.local_slots;
  config.report_ms = options.heartbeat_ms;
  config.node_timeout_ms = options.node_timeout_ms;
  config.relay_from = options.relay_from;
  config.lease_ms = options.lease_ms;
  config.node_wait_ms = options.node_wait_ms;
  config.unprotected_after_ms = options.unprotected_after_ms;
  return config;
}

const char* sentence_of(net::Reach reach) {
  switch (reach) {
    case net::Reach::answers:
      return "its agent answers at its listener; it is too slow, or was away for a moment";
    case net::Reach::silent:
      return "its machine answers and its agent does not, as if it were stopped";
    case net::Reach::ended:
      return "its machine answers, and its agent has ended";
    case net::Reach::unreachable:
      return "its machine cannot be reached; it is down, or the network is cut";
    case net::Reach::wrong_token:
      return "its agent answers and has another token of the job; give it the token_file of the others and restart it";
    case net::Reach::unauthenticated_peer:
      return "an agent of another job, or of another release, answers at its listener";
    case net::Reach::unknown:
      break;
  }
  return "it is not known where it was";
}

constexpr std::int64_t arena_look_ms = 250;

core::TimeMs now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace

// What an earlier agent and living trainers left in the arena.
struct Driver::Recovery {
  std::vector<core::Recovered::Granted> granted;
  std::map<core::Rank, OpenGrant> grants;
};

Driver::Recovery Driver::recover(const Parts& parts) {
  Recovery recovery;
  for (const LivingTrainer& trainer : living_trainers(parts.arena.directory())) {
    try {
      const auto control = arena::Control::attach(parts.arena.directory(), trainer.rank);
      // A used grant's slots are sealed and stay so: nobody grants meanwhile. Else the trainer may be writing them.
      const std::uint64_t used = control.used_grant();
      const arena::Grant grant = control.grant();
      if (grant.sequence == used) continue;
      const core::Share share = control.share();
      if (!core::is_valid(share)) throw Failure(CKPT_ERR_CORRUPT, "its control page names an impossible share");
      auto shards = core::parts_of(trainer.main_shard, share);
      shards.push_back(trainer.private_shard);
      OpenGrant open{grant.sequence, {}};
      for (std::size_t i = 0; i < shards.size(); ++i) open.slots.push_back({trainer.rank, shards[i], grant.slots[i]});
      recovery.granted.push_back({trainer.rank, open.slots});
      recovery.grants[trainer.rank] = std::move(open);
    } catch (const Failure& failure) {
      parts.log->warn("rank {}: {}", trainer.rank, failure.what());  // it will be told so when it comes back
    }
  }
  return recovery;
}

Driver::Driver(const Parts& parts, NodeId node, std::uint64_t agent_id)
    : Driver(parts, node, agent_id, recover(parts)) {}

Driver::Driver(const Parts& parts, NodeId node, std::uint64_t agent_id, Recovery recovery)
    : parts_(parts),
      id_(node),
      agent_id_(agent_id),
      event_log_(parts.log),
      hook_(parts.options.member_hook, parts.log),
      segments_(parts.arena,
                {parts.options.arena_bytes, core_config(parts.options, false, node, 0).local_slots,
                 core_config(parts.options, false, node, 0).held_slots},
                parts.index, parts.queue, [this](const SegmentKey& key) { return fetches_.writes_into(key); }),
      replications_({parts.arena.directory(), segments_, parts.queue,
                     [this](NodeId to, const core::ReplicationUpdate& notified) { transport_->send(to, encode(notified)); },
                     [this](core::Rank rank) { trainers_.ring(rank); }, [this] { fetches_.look(); },
                     [this](const std::string& text) { event_log_.note(text); },
                     [this](std::uint64_t piece_bytes) { return bytes_to_come(piece_bytes); }}),
      fetches_(node, segments_, parts.index, parts.digests, parts.buffers, parts.queue, replications_,
               {[this](const core::StartFetch& fetch, core::FetchEnded ended) {
                  fetch_ended(fetch, std::move(ended));
                },
                [this](const std::string& text) { event_log_.note(text); },
                [this](const CodingJob::PieceRef& source, CheckpointId checkpoint, bool is_wrong) {
                  source_damaged(source.shard, checkpoint, source.node, is_wrong);
                }}),
      trainers_({parts.arena.directory(), segments_, parts.index, parts.queue, event_log_, parts.scheduler, parts.trace,
                 replications_, [this](core::Event event) { handle(std::move(event)); },
                 [this](const SlotRef& slot, std::function<void()> then) { verify(slot, std::move(then)); },
                 [this] { return what_is_missing(); }, [this](std::uint64_t bytes) { return bytes_for_peers(bytes); }},
                std::move(recovery.grants)),
      core_(core_config(parts.options, !parts.sources.empty(), node, parts.arena.arena_id()), agent_id, [&] {
        std::vector<std::string> notices;
        auto recovered = segments_.recover(recovery.granted, notices);
        for (const std::string& notice : notices) event_log_.note(notice);
        return recovered;
      }()) {
  committed_ = parts.arena.memory().highest_commit;
  if (!parts.options.storage.empty() || !parts.sources.empty()) {
    storage_.emplace(
        parts.options, parts.sources, parts.index, parts.queue,
        [this](core::Event event) { handle(std::move(event)); },
        [this](const std::string& text) { event_log_.note(text); });
  }
}

Driver::~Driver() = default;

void Driver::use(net::Transport& transport, StorePoller& store) {
  transport_ = &transport;
  store_ = &store;
}

void Driver::run() {
  const std::int64_t tick_ms = std::max<std::int64_t>(parts_.options.heartbeat_ms / 2, 1);
  Deadline tick = Deadline::in_ms(0);
  while (!parts_.queue.closed()) {
    const auto wanted_at = core_.tick_wanted_at();
    const Deadline wanted = wanted_at ? Deadline::in_ms(*wanted_at - now_ms()) : tick;
    const Deadline replications = replications_.tick_wanted_at().value_or(tick);
    const auto earlier = [](Deadline a, Deadline b) { return a.at() < b.at() ? a : b; };
    const auto task = parts_.queue.take(earlier(earlier(wanted, tick), replications));
    if (task) run_task(*task);
    if (!task && wanted_at && wanted.passed()) run_task([this] { handle(core::Tick{}); });
    run_task([this] { replications_.tick(); });
    if (!tick.passed()) continue;
    tick = Deadline::in_ms(tick_ms);
    run_task([this] {
      handle(core::Tick{});
      trainers_.tick();
      heed_alarm();
      heed_health();
      finish_effects();
    });
    run_task([this] { heed_arena(); });
  }
}

void Driver::end_transfers() { fetches_.close(); }

// Whatever goes wrong in one task, the agent goes on: others depend on it.
void Driver::run_task(const Task& task) {
  try {
    task();
  } catch (const std::exception& error) {
    event_log_.note(std::string("internal error: ") + error.what());
    handling_ = false;
  }
}

void Driver::handle(core::Event event) {
  events_.push_back(std::move(event));
  if (handling_) return;  // by the loop below, after the effects that are being carried out
  handling_ = true;
  while (!events_.empty()) {
    const core::Event next = std::move(events_.front());
    events_.pop_front();
    for (const core::Effect& effect : core_.handle(next, now_ms())) carry_out_alone(effect);
  }
  handling_ = false;
}

// ---- Effects ----

// One that fails takes no other with it: the core counts on each.
void Driver::carry_out_alone(const core::Effect& effect) {
  try {
    std::visit([this](const auto& each) { carry_out(each); }, effect);
  } catch (const std::exception& error) {
    event_log_.note(std::string("internal error: ") + error.what());
    std::visit([this, &error](const auto& each) { failed(each, error.what()); }, effect);
  }
}

void Driver::failed(const core::StartFetch& fetch, const std::string&) { fetches_.give_up(fetch); }

void Driver::failed(const core::ListStorage&, const std::string& why) {
  core::StorageListed nothing;
  nothing.knows_incarnations = false;
  nothing.trouble = why;
  handle(std::move(nothing));
}

void Driver::failed(const core::StartWrite& write, const std::string& why) {
  handle(core::WriteEnded{write.checkpoint, why});
}

void Driver::failed(const core::FinalizeCheckpoint& commit, const std::string& why) {
  handle(core::FinalizeEnded{commit.checkpoint, why});
}

void Driver::finish_effects() {
  for (const core::Effect& effect : std::exchange(unfinished_, {})) carry_out_alone(effect);
}

void Driver::carry_out(const core::Send& send) {
  if (send.to == id_) return handle(core::MessageArrived{id_, send.message});
  const core::WireMessage message = std::visit([](const auto& content) { return core::WireMessage(content); }, send.message);
  transport_->send(send.to, encode(message));  // one that is lost is repeated with the next heartbeat
}

void Driver::carry_out(const core::SwapLeaderRecord& swap) { store_->swap(swap); }
void Driver::carry_out(const core::SwapIncarnationRecord& swap) { store_->swap(swap); }
void Driver::carry_out(const core::ReadAssignments& read) { store_->read(read); }
void Driver::carry_out(const core::RemoveAssignments& removal) { store_->remove(removal); }

void Driver::carry_out(const core::Persist& persist) {
  parts_.arena.remember({persist.highest_commit, persist.newest_seen, persist.epoch, persist.newest_damaged});
  if (persist.highest_commit <= committed_) return;
  committed_ = persist.highest_commit;
  replications_.committed(committed_);
  committed_at_ = Clock::now();
  ++event_log_.counters.commits;
  const std::int64_t now_us = microseconds(*committed_at_);
  parts_.trace.add({TraceEvent::Kind::commit, now_us, now_us, 0, committed_, 0, {}, 0});
}

void Driver::carry_out(const core::StartFetch& fetch) {
  ++event_log_.counters.fetches;
  // What an earlier incarnation left is what a restore waits for, or protects it until this incarnation's first commit.
  const bool urgent = fetch.piece.checkpoint.incarnation() != core_.status().incarnation;
  fetches_.start(fetch, urgent, *transport_, storage_ ? &*storage_ : nullptr);
}

void Driver::carry_out(const core::CancelFetch& cancel) { fetches_.cancel(cancel.fetch); }

void Driver::carry_out(const core::DropSlot& drop) {
  const auto segment = segments_.find({drop.slot.rank, drop.slot.shard});
  const Pin piece = parts_.index.find(drop.slot);
  // Marked first: however this agent ends, the next one does not find the piece.
  if (segment != nullptr && piece != nullptr) segment->writable_slot(drop.slot.slot).drop(piece->manifest().checkpoint);
  // The last reader may be a thread of storage that hangs, and outlives this agent.
  parts_.index.drop(drop.slot, [alive = parts_.queue.weak_from_this(), this, slot = drop.slot] {
    if (const auto queue = alive.lock()) queue->post([this, slot] { handle(core::SlotReleased{slot}); });
  });
}

void Driver::carry_out(const core::ReleaseSegment& release) { segments_.remove({release.rank, release.shard}); }

void Driver::carry_out(const core::ListStorage&) { storage_->list(); }
void Driver::carry_out(const core::StartWrite& write) { storage_->write(write); }
void Driver::carry_out(const core::FinalizeCheckpoint& commit) { storage_->commit(commit); }

// What to do about a lost node depends on whether its machine answers, so its listener is probed first. What becomes of
// it meanwhile is told after.
void Driver::carry_out(const core::MemberChanged& changed) {
  if (const auto probing = probing_.find(changed.node); probing != probing_.end()) {
    probing->second.push_back(changed);
    return;
  }
  const auto found = nodes_.find(changed.node);
  if (changed.change != core::Change::lost || found == nodes_.end()) return notify(changed, net::Reach::unknown);
  probing_[changed.node];
  const auto answered = [alive = parts_.queue.weak_from_this(), this, changed](net::Reach reach) {
    if (const auto queue = alive.lock()) queue->post([=, this] { listener_answered(changed, reach); });
  };
  transport_->probe(changed.node, found->second.arena_id, found->second.address, answered);
}

void Driver::listener_answered(const core::MemberChanged& lost, net::Reach reach) {
  if (reach == net::Reach::wrong_token) distrusted_.insert(lost.node);
  notify(lost, reach);
  const auto since = probing_.extract(lost.node);
  for (const core::MemberChanged& changed : since.mapped()) notify(changed, net::Reach::unknown);
}

void Driver::notify(const core::MemberChanged& changed, net::Reach reach) {
  const std::string node = node_name(changed.node);
  const std::string by = changed.by == core::no_node ? "" : node_name(changed.by);
  MemberNews news{parts_.options.job, "", node, by, ""};
  const std::uint64_t epoch = core_.status().epoch;
  if (std::exchange(lost_epoch_, epoch) != epoch) lost_.clear();  // a leader tells anew what it finds
  switch (changed.change) {
    case core::Change::lost:
      event_log_.note("node " + node + " does not answer any more: " + sentence_of(reach));
      news.change = "lost";
      news.reason = name_of(reach);
      lost_[changed.node] = reach;
      break;
    case core::Change::replaced:
      event_log_.note("node " + by + ", which stood by, takes the place of node " + node);
      news.change = "replaced";
      break;
    case core::Change::returned:
      event_log_.note("node " + node + " is back");
      news.change = "returned";
      lost_.erase(changed.node);
      break;
    case core::Change::released:
      event_log_.note("the job goes on without node " + node);
      news.change = "released";
      lost_.erase(changed.node);
      break;
  }
  hook_.notify(std::move(news));
}

void Driver::carry_out(const core::Notice& notice) { event_log_.note(notice.text); }

void Driver::fetch_ended(const core::StartFetch& fetch, core::FetchEnded ended) {
  if (ended.result != FetchResult::complete) ++event_log_.counters.failed_fetches;
  const bool is_of_a_node = fetch.source != core::storage_node && fetch.source != core::parity_node;
  if (ended.result == FetchResult::corrupt && is_of_a_node)
    source_damaged(fetch.piece.shard, fetch.piece.checkpoint, fetch.source, false);
  handle(std::move(ended));
}

void Driver::source_damaged(const std::string& shard, CheckpointId checkpoint, NodeId node, bool is_wrong) {
  ++event_log_.counters.corrupt;
  event_log_.note("shard " + shard + " of iteration " + std::to_string(checkpoint.iteration()) +
                  (is_wrong ? ", which is wrong, came from node " : " came damaged from node ") + node_name(node));
  const core::VerifyRequest request{shard, checkpoint, is_wrong};
  if (node == id_) return look_again(request);
  transport_->send(node, encode(request));
}

// It was damaged on the way or is damaged here. Parity that is whole and wrong shows only to who decodes with it.
void Driver::look_again(const core::VerifyRequest& request) {
  const Pin piece = parts_.index.find(request.shard, request.checkpoint);
  if (piece == nullptr) return;
  if (request.is_wrong && core::is_reserved(request.shard)) return handle(core::PieceCorrupt{piece->slot()});
  verify(piece->slot(), [] {});
}

void Driver::verify(const SlotRef& slot, std::function<void()> then) {
  const Pin piece = parts_.index.find(slot);
  if (piece == nullptr || !verifying_.insert(slot).second) return then();
  auto job = [this, &queue = parts_.queue, pinned = piece, slot, then = std::move(then)]() mutable {
    const arena::Manifest& manifest = pinned->manifest();
    const auto on_disk = pinned->segment().slot(slot.slot).read();
    const bool good = on_disk == manifest && !kernels::verify_leaves(pinned->data(), manifest.length_bytes, 0,
                                                                     manifest.leaves.size(), manifest.leaves.data());
    const CheckpointId checkpoint = manifest.checkpoint;
    pinned.reset();
    queue.post([this, slot, checkpoint, good, then = std::move(then)] {
      verifying_.erase(slot);
      const Pin now = parts_.index.find(slot);
      if (!good && now != nullptr && now->manifest().checkpoint == checkpoint) {
        ++event_log_.counters.corrupt;
        handle(core::PieceCorrupt{slot});
      }
      then();
    });
  };
  parts_.digests.submit(std::move(job));
}

// ---- What the other threads have heard ----

void Driver::post(core::Event event) {
  parts_.queue.post([this, event = std::move(event)]() mutable { handle(std::move(event)); });
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
  if (decision.verdict == core::Verdict::undecided || incarnation_record.incarnation == decided_incarnation_)
    return;
  decided_incarnation_ = incarnation_record.incarnation;
  if (decision.verdict == core::Verdict::restore)
    parts_.log->info("incarnation {} was decided: it restores iteration {} of incarnation {}",
                     incarnation_record.incarnation, decision.checkpoint.iteration(),
                     decision.checkpoint.incarnation());
  else
    parts_.log->info("incarnation {} was decided: {}", incarnation_record.incarnation,
                     decision.verdict == core::Verdict::fresh ? "a fresh start" : decision.text);
}

// It is a replacement the status only while it lasts, and nothing is committed meanwhile: who looks later finds it in
// the log.
void Driver::heed_alarm() {
  std::string alarm = core_.status().alarm;
  if (alarm == alarm_) return;
  alarm_ = std::move(alarm);
  if (!alarm_.empty()) event_log_.note(alarm_);
}

// Files of shared memory have names that anybody of this user can remove, and systemd-logind does when the user logs
// out (RemoveIPC). What is mapped stays whole until this agent ends; so it goes on, and says so.
void Driver::heed_arena() {
  if (!arena_look_.passed()) return;
  arena_look_ = Deadline::in_ms(arena_look_ms);
  const std::string& directory = parts_.arena.directory();
  drop_damaged_segments();
  if (parts_.arena.is_removed()) {
    event_log_.note("somebody removed the arena " + directory + " under this agent, which makes it anew");
    try {
      parts_.arena.make_again();
      parts_.listen_again();
    } catch (const Failure& failure) {
      if (failure.status() == CKPT_ERR_CLAIMED)
        return parts_.stop_agent(EndReason::replaced, "somebody removed the arena " + directory +
                                                          ", and another agent serves it by now, so this one ends");
      event_log_.note("the arena " + directory + " cannot be made anew: " + failure.what());
    }
  }
  const std::uint64_t nameless_bytes = segments_.nameless_bytes();
  std::string alarm;
  if (nameless_bytes != 0)
    alarm = "somebody removed files of the arena " + directory + "; " + std::to_string((nameless_bytes >> 20) + 1) +
            " MiB of checkpoints are in the memory of process " + std::to_string(::getpid()) +
            " alone and are lost when it ends; do not stop it before the job has ended or is stored, and see to it "
            "that nobody removes them again (loginctl enable-linger, or RemoveIPC=no in logind.conf)";
  if (alarm != arena_alarm_ && !alarm.empty()) event_log_.note(alarm);
  arena_alarm_ = std::move(alarm);
}

// Whoever touches memory beyond the end of a file is killed (SIGBUS). Nothing prevents that somebody of this user cuts
// one off; what this finds in time is dropped, and fetched again.
void Driver::drop_damaged_segments() {
  for (const auto& [key, segment] : segments_.take_damaged()) {
    event_log_.note("somebody cut off " + segment->path() +
                    ", so what it held is dropped; leave the arena's files alone");
    for (std::uint32_t i = 0; i < segment->spec().slots; ++i)
      if (const SlotRef slot{key.rank, key.shard, static_cast<std::uint8_t>(i)}; parts_.index.find(slot) != nullptr)
        handle(core::PieceCorrupt{slot});
  }
}

std::string Driver::alarm() const {
  const std::string of_job = core_.status().alarm;
  return of_job.empty() || arena_alarm_.empty() ? of_job + arena_alarm_ : of_job + "; " + arena_alarm_;
}

void Driver::message_arrived(NodeId from, std::span<const std::byte> bytes) {
  auto message = core::decode(bytes);
  if (!message) return;
  parts_.queue.offer([this, from, message = std::move(*message)]() mutable {
    if (const auto* request = std::get_if<core::VerifyRequest>(&message)) {
      look_again(*request);
    } else if (const auto* notified = std::get_if<core::ReplicationUpdate>(&message)) {
      replications_.received(from, *notified);
    } else if (auto* report = std::get_if<core::Report>(&message)) {
      if (report->node == from) handle(core::MessageArrived{from, std::move(*report)});
    } else if (auto* directive = std::get_if<core::Directive>(&message)) {
      if (directive->leader == from) handle(core::MessageArrived{from, std::move(*directive)});
    } else if (auto* report_batch = std::get_if<core::ReportBatch>(&message)) {
      handle(core::MessageArrived{from, std::move(*report_batch)});  // what it brings is of others
    } else if (auto* directive_batch = std::get_if<core::DirectiveBatch>(&message)) {
      handle(core::MessageArrived{from, std::move(*directive_batch)});  // likewise
    }
  });
}

void Driver::nodes_read(const std::vector<coord::NodeEntry>& nodes) {
  parts_.queue.offer([this, nodes] { take_nodes(nodes); });
}

void Driver::remark(const std::string& sentence) {
  parts_.queue.offer([this, sentence] { event_log_.note(sentence); });
}

void Driver::take_nodes(const std::vector<coord::NodeEntry>& nodes) {
  for (const coord::NodeEntry& node : nodes) {
    if (node.id == id_ && node.name != parts_.options.node) {
      // The store forgot who has this number, and two took it. The one that came later gives way.
      if (node.agent_id > agent_id_) continue;
      return parts_.stop_agent(EndReason::replaced, "node " + node.name + " has the number of this node, " +
                                                        std::to_string(id_) +
                                                        ", and had it before; this agent ends, and gets another one "
                                                        "when it is started again");
    }
    if (node.id == id_) {
      if (node.agent_id == agent_id_) continue;
      return parts_.stop_agent(EndReason::replaced,
                               "node " + node.name + " is now served by another agent (process " +
                                   std::to_string(node.pid) +
                                   "), so this one ends; give each machine a node name of its own");
    }
    if (nodes_.contains(node.id) && nodes_.at(node.id) == node) continue;
    nodes_[node.id] = node;
    transport_->set_peer(node.id, node.arena_id, node.address);
  }
}

// ---- Requests ----

void Driver::hello(const core::TrainerHello& hello, std::int64_t pid, Respond respond) {
  parts_.queue.post([this, hello, pid, respond = std::move(respond)] { trainers_.hello(hello, pid, respond); });
}

void Driver::exited(Asker asker) {
  parts_.queue.post([this, asker] { trainers_.exited(asker); });
}

void Driver::restore(Asker asker, const RestoreRequest& request, Respond respond) {
  parts_.queue.post(
      [this, asker, request, respond = std::move(respond)] { trainers_.restore(asker, request, respond); });
}

void Driver::restored(Asker asker, std::string no_replication, Respond respond) {
  parts_.queue.post([this, asker, no_replication = std::move(no_replication), respond = std::move(respond)] {
    trainers_.restored(asker, no_replication, respond);
  });
}

void Driver::corrupt(Asker asker, const CorruptRequest& request, std::int64_t timeout_ms, Respond respond) {
  parts_.queue.post([this, asker, request, timeout_ms, respond = std::move(respond)] {
    trainers_.corrupt(asker, request, timeout_ms, respond);
  });
}

void Driver::reserve(Asker asker, const ReserveRequest& request, Respond respond) {
  parts_.queue.post(
      [this, asker, request, respond = std::move(respond)] { trainers_.reserve(asker, request, respond); });
}

void Driver::status(Respond respond) {
  parts_.queue.post([this, respond = std::move(respond)] { respond({CKPT_OK, "", {{"agent", status_json()}}, {}}); });
}

void Driver::trace(Respond respond) {
  parts_.queue.post([this, respond = std::move(respond)] { respond({CKPT_OK, "", {{"trace", trace_json()}}, {}}); });
}

void Driver::health(Respond respond) {
  parts_.queue.post([this, respond = std::move(respond)] { respond({CKPT_OK, "", {{"health", health_json()}}, {}}); });
}

void Driver::stop(Respond respond) {
  parts_.queue.post([this, respond = std::move(respond)] {
    try {
      parts_.arena.mark_stopped();
    } catch (const Failure& failure) {
      event_log_.note(failure.what());  // trainers will start another agent
    }
    respond({});
    parts_.stop_agent(EndReason::asked, "it was asked to");
  });
}

}  // namespace ckpt::agent
