#include "agent/trainers/trainer_manager.hpp"

#include <unistd.h>

#include <algorithm>

#include "agent/trainers/restore_reply.hpp"
#include "base/same_file.hpp"

namespace ckpt::agent {
namespace {

using core::Rank;
using core::SlotRef;
using nlohmann::json;

Reply refusal(ckpt_status status, std::string message) { return {status, std::move(message), json::object(), {}}; }

std::string control_path(const std::string& directory, Rank rank) {
  return directory + "/rank-" + std::to_string(rank) + ".control";
}

}  // namespace

TrainerManager::TrainerManager(Dependencies dependencies, std::map<Rank, OpenGrant> granted)
    : deps_(dependencies), granted_(std::move(granted)), watch_(deps_.limits) {}

RankPort* TrainerManager::port_of(Rank rank) {
  const auto found = trainers_.find(rank);
  return found == trainers_.end() ? nullptr : found->second.port.get();
}

RankPort* TrainerManager::port_of(Asker asker) {
  RankPort* port = port_of(asker.rank);
  return port != nullptr && port->hello().instance == asker.instance ? port : nullptr;
}

bool TrainerManager::refuse_unknown(Asker asker, const Respond& respond) {
  if (port_of(asker) != nullptr) return false;
  respond(refusal(CKPT_ERR_SUPERSEDED,
                  "rank " + std::to_string(asker.rank) + " was claimed by another trainer; stop this process"));
  return true;
}

// ---- Requests ----

void TrainerManager::hello(const core::TrainerHello& hello, std::int64_t pid, const Respond& respond) {
  const bool goes_on = hello.incarnation != 0;
  RankPort* known = port_of({hello.rank, hello.instance});
  try {
    if (known == nullptr) {
      std::optional<OpenGrant> outstanding;
      if (const auto granted = granted_.find(hello.rank); granted != granted_.end() && goes_on)
        outstanding = granted->second;
      granted_.erase(hello.rank);
      auto control = goes_on ? arena::Control::attach(deps_.directory, hello.rank)
                             : arena::Control::create(deps_.directory, hello.rank);
      const Asker asker{hello.rank, hello.instance};
      auto port = std::make_unique<RankPort>(hello, std::move(control), outstanding,
                                             [this, asker] { deps_.queue.post([this, asker] { look(asker); }); });
      known = port.get();
      arrivals_.forget(hello.rank);
      trainers_[hello.rank] = {std::move(port), pid};
      deps_.scheduler.add(hello.rank, known->shared_control());
      watch_.add(hello.rank, pid, known->shared_control(), hello.incarnation);
      deps_.core.handle(hello);
    }
    Reply reply;
    reply.fds.push_back(duplicate(known->control().fd()));
    respond(std::move(reply));
  } catch (const Failure& failure) {
    // Without its page the trainer cannot go on. Other failures may pass, and it asks again.
    const bool is_page_lost = goes_on && failure.status() == CKPT_ERR_CORRUPT;
    respond(refusal(is_page_lost ? CKPT_ERR_SUPERSEDED : failure.status(), failure.what()));
  }
}

// Its newest private shard, or more. Peers that have the rest of that iteration can restore it.
void TrainerManager::take_left_behind(Rank rank, LeftPieces&& pieces) {
  core::LeftBehind left{rank, {}};
  for (auto& [slot, manifest] : pieces) {
    left.pieces.emplace_back(slot, piece_info(manifest));
    deps_.index.add(slot, deps_.segments.find({slot.rank, slot.shard}), std::move(manifest));
  }
  if (!left.pieces.empty()) deps_.core.handle(std::move(left));
}

void TrainerManager::exited(Asker asker, bool died) {
  if (RankPort* port = port_of(asker); port != nullptr) {
    look(asker);  // what it did last, which no task has read yet
    take_left_behind(asker.rank, port->left_behind(deps_.segments));
    port->fence(0);  // at the latest this stops a process that goes on without its engine
    unlink_same(control_path(deps_.directory, asker.rank), port->control().fd());
    trainers_.erase(asker.rank);
    died ? watch_.died(asker.rank, Clock::now()) : watch_.remove(asker.rank);
    deps_.scheduler.remove(asker.rank);
    restores_.erase(asker.rank);
    served_.erase(asker.rank);
    arrivals_.forget(asker.rank);
    deps_.replications.gone(asker.rank);
  } else if (port_of(asker.rank) == nullptr) {
    if (const auto granted = granted_.find(asker.rank); granted != granted_.end())
      take_left_behind(asker.rank, left_by_orphan(deps_.directory, asker.rank, granted->second, deps_.segments));
    ::unlink(control_path(deps_.directory, asker.rank).c_str());
    granted_.erase(asker.rank);
    deps_.replications.gone(asker.rank);
  }
  deps_.core.handle(core::TrainerExited{asker.rank, asker.instance});
  if (died) watch_ranks();
}

void TrainerManager::restore(Asker asker, const RestoreRequest& request, const Respond& respond) {
  if (refuse_unknown(asker, respond)) return;
  trainers_.at(asker.rank).wants_gpu_replication = request.wants_gpu_replication;
  trainers_.at(asker.rank).takes_shards = request.takes_shards;
  trainers_.at(asker.rank).follows_arrivals = request.follows_arrivals;
  await_restore(asker.rank, request.timeout_ms, respond);
}

void TrainerManager::await_restore(Rank rank, std::int64_t timeout_ms, const Respond& respond) {
  watch_.joined(rank, 0);
  restores_.insert_or_assign(rank, PendingRestore{respond, Deadline::in_ms(timeout_ms)});
  Trainer& trainer = trainers_.at(rank);
  if (!trainer.asked_at) trainer.asked_at = Clock::now();
  deps_.core.handle(core::RestoreAsked{rank, trainer.wants_gpu_replication, trainer.takes_shards});
  if (restores_.contains(rank)) trainer.ready_at.reset();  // a piece was lost since
  tell_arrivals(rank);
}

void TrainerManager::no_longer_waits(Rank rank) {
  trainers_.at(rank).asked_at.reset();
  trainers_.at(rank).ready_at.reset();
  arrivals_.forget(rank);
}

// A piece that is decoded or read from storage does not say how far it is.
void TrainerManager::fetch_began(const core::StartFetch& fetch) {
  if (fetch.source == core::storage_node || fetch.source == core::parity_node) return;
  arrivals_.began(fetch.slot, {fetch.fetch, fetch.piece.checkpoint});
  tell_arrivals();
}

void TrainerManager::tell_arrivals() {
  std::vector<Rank> waiting;
  for (const auto& [rank, pending] : restores_) waiting.push_back(rank);
  for (const Rank rank : waiting) tell_arrivals(rank);
}

// Answers a rank that waits for its state, if a piece of it is on its way and the rank does not know. The rank then
// asks again at once.
void TrainerManager::tell_arrivals(Rank rank) {
  const auto trainer = trainers_.find(rank);
  if (trainer == trainers_.end() || !trainer->second.follows_arrivals || !restores_.contains(rank)) return;
  const core::AwaitedPieces awaited = deps_.node.awaited(rank);
  const auto news = arrivals_.tell(rank, awaited);
  if (news.empty()) return;
  try {
    const std::string& main_shard = trainer->second.port->hello().main_shard;
    Reply reply = arrivals_reply(rank, main_shard, awaited.incarnation, news, deps_.segments);
    take_pending(rank)->respond(std::move(reply));
  } catch (const Failure& failure) {
    deps_.event_log.note(failure.what());  // the rank gets its state once all of it is here
  }
}

void TrainerManager::restored(Asker asker, const std::string& no_replication, const Respond& respond) {
  if (refuse_unknown(asker, respond)) return;
  if (!no_replication.empty()) deps_.replications.refuse(asker.rank, no_replication);
  deps_.core.handle(core::RestoreDone{asker.rank});
  respond({});
}

void TrainerManager::corrupt(Asker asker, const CorruptRequest& request, std::int64_t timeout_ms,
                             const Respond& respond) {
  if (refuse_unknown(asker, respond)) return;
  const SlotRef* slot = served_slot(asker.rank, request.shard);
  if (slot == nullptr)
    return respond(refusal(
        CKPT_ERR_INVALID, "this agent did not give rank " + std::to_string(asker.rank) + " the shard " + request.shard +
                              " to restore. The agent may have restarted in between; start all ranks again"));
  deps_.event_log.note("rank " + std::to_string(asker.rank) + " found shard " + request.shard + " damaged");
  // When the damaged piece is dropped, the core waits until another source has brought it back.
  deps_.pieces.verify(*slot, [this, asker, timeout_ms, respond, follows = request.follows_arrivals] {
    if (refuse_unknown(asker, respond)) return;
    trainers_.at(asker.rank).follows_arrivals = follows;
    await_restore(asker.rank, timeout_ms, respond);
  });
}

// A slot among those that the rank last got to restore from.
const SlotRef* TrainerManager::served_slot(Rank rank, const std::string& shard) const {
  const core::RestoreReady* ready = served(rank);
  if (ready == nullptr) return nullptr;
  if (ready->private_.slot.shard == shard) return &ready->private_.slot;
  for (const auto* sources : {&ready->main, &ready->taken}) {
    const auto part = std::find_if(sources->begin(), sources->end(),
                                   [&](const core::RestoreSource& source) { return source.slot.shard == shard; });
    if (part != sources->end()) return &part->slot;
  }
  return nullptr;
}

const core::RestoreReady* TrainerManager::served(Rank rank) const {
  const auto found = served_.find(rank);
  return found == served_.end() ? nullptr : &found->second;
}

void TrainerManager::reserve(Asker asker, const ReserveRequest& request, const Respond& respond) {
  if (refuse_unknown(asker, respond)) return;
  trainers_.at(asker.rank).shortage = request.shortage;
  watch_.interrupted(asker.rank, Clock::now());
  std::vector<std::pair<SegmentKey, SlotNeed>> needs;
  std::vector<std::string> shards;
  std::uint64_t rank_bytes = 0;
  for (const SlotRequest& slot : request.slots) {
    shards.push_back(slot.shard);
    const SlotNeed need{slot.bytes, slot.layout_bytes};
    rank_bytes += deps_.segments.segment_bytes({core::held_rank, slot.shard}, need);
    needs.push_back({{asker.rank, slot.shard}, need});
    needs.back().second.has_spare = has_spare(asker.rank, slot.shard);
  }
  deps_.segments.ensure(
      needs, deps_.space.bytes_for_peers(rank_bytes),
      [this, asker, shards, respond](const std::optional<Failure>& failure) {
        if (failure) return respond(refusal(failure->status(), failure->what()));
        if (refuse_unknown(asker, respond)) return;
        try {
          Reply reply;
          for (const std::string& shard : shards)
            reply.fds.push_back(duplicate(deps_.segments.find({asker.rank, shard})->fd()));
          deps_.core.handle(segments_of(asker.rank, shards));
          respond(std::move(reply));
        } catch (const Failure& no_descriptor) {
          respond(refusal(no_descriptor.status(), no_descriptor.what()));
        } catch (const std::exception& error) {
          respond(refusal(CKPT_ERR_INTERNAL, bug_text(std::string("the agent could not answer: ") + error.what())));
        }
      });
}

void TrainerManager::trouble(Asker asker, const std::string& text, const Respond& respond) {
  if (refuse_unknown(asker, respond)) return;
  deps_.event_log.note("a communication failed on rank " + std::to_string(asker.rank) + ": " + text);
  deps_.core.handle(core::TroubleReported{asker.rank});
  respond({});
}

core::SegmentsReady TrainerManager::segments_of(Rank rank, const std::vector<std::string>& shards) const {
  std::uint32_t slots = arena::segment_slots_max, private_slots = 0;
  for (const std::string& shard : shards) {
    const std::uint32_t there = deps_.segments.find({rank, shard})->slots();
    const bool is_with_spare = has_spare(rank, shard);
    if (is_with_spare) private_slots = there;
    slots = std::min(slots, there - (is_with_spare && there > 1 ? 1 : 0));
  }
  return {rank, shards, static_cast<std::uint8_t>(slots), static_cast<std::uint8_t>(private_slots)};
}

// A rank that can be halted keeps two private shards besides the captured ones: of an iteration and of the one before.
bool TrainerManager::has_spare(Rank rank, const std::string& shard) const {
  const core::TrainerHello& hello = trainers_.at(rank).port->hello();
  return hello.halts && shard == hello.private_shard;
}

void TrainerManager::look(Asker asker) {
  RankPort* port = port_of(asker);
  if (port == nullptr) return;
  port->looked();  // call this before reading the words: a later change rings again
  RankPort::ControlChanges changes = port->look(deps_.segments);
  deps_.scheduler.listen();
  trace_capture(asker.rank, changes);
  if (!changes.complaint.empty()) deps_.event_log.note(changes.complaint);
  if (changes.skipped) ++deps_.event_log.counters.skips;
  if (changes.captured) {
    for (auto& [slot, manifest] : changes.pieces)
      deps_.index.add(slot, deps_.segments.find({slot.rank, slot.shard}), std::move(manifest));
    deps_.core.handle(*changes.captured);
  }
  if (changes.captured || changes.progress) trainers_.at(asker.rank).progress_at = Clock::now();
  trainers_.at(asker.rank).failed = changes.failed;
  if (changes.progress) deps_.core.handle(*changes.progress);
  if (changes.freeze) deps_.core.handle(*changes.freeze);
  deps_.replications.look(asker.rank);
}

// Records a capture, from the call of snapshot(), which marks an iteration, until the agent has read the trainer's
// report.
void TrainerManager::trace_capture(Rank rank, const RankPort::ControlChanges& changes) {
  if (!changes.captured) return;
  if (const auto since_us = deps_.scheduler.iteration_began_us(rank))
    deps_.trace.add({TraceEvent::Kind::capture,
                     *since_us,
                     microseconds(Clock::now()),
                     rank,
                     changes.captured->pieces.front().checkpoint,
                     0,
                     {},
                     0});
}

// ---- Effects ----

void TrainerManager::carry_out(const core::GrantSlots& grant) {
  if (RankPort* port = port_of(grant.rank)) port->grant(grant.share, grant.slots, grant.spare);
}

// If there is no memory for more slots, the rank goes on with those that it has, and people are told.
void TrainerManager::carry_out(const core::AddSlots& add) {
  const RankPort* port = port_of(add.rank);
  if (port == nullptr) return;
  std::vector<std::pair<SegmentKey, SlotNeed>> needs;
  std::uint64_t rank_bytes = 0;
  for (const std::string& shard : add.shards) {
    const auto segment = deps_.segments.find({add.rank, shard});
    if (segment == nullptr) return;
    needs.push_back({{add.rank, shard}, {0, 0, add.slots, has_spare(add.rank, shard)}});
    rank_bytes += deps_.segments.segment_bytes({core::held_rank, shard}, {segment->spec().data_capacity_bytes, 0, 0});
  }
  const Asker asker{add.rank, port->hello().instance};
  deps_.segments.ensure(
      needs, deps_.space.bytes_for_peers(rank_bytes), [this, asker, add](const std::optional<Failure>& failure) {
        if (port_of(asker) == nullptr) return;
        const std::string rank = "rank " + std::to_string(add.rank);
        if (failure) {
          std::string& refused = trainers_.at(add.rank).slots_refused;
          refused = rank +
                    " skips snapshots while earlier ones are copied to other nodes. The agent could not add a slot: " +
                    failure->what();
          return deps_.event_log.note(refused);
        }
        deps_.event_log.note(rank + " got a further slot, because its snapshots wait for replication");
        deps_.core.handle(segments_of(add.rank, add.shards));
      });
}

void TrainerManager::carry_out(const core::NotifyCommit& notify) {
  if (RankPort* port = port_of(notify.rank)) port->commit(notify.committed);
}

void TrainerManager::carry_out(const core::NotifyStored& notify) {
  if (RankPort* port = port_of(notify.rank)) port->stored(notify.stored);
}

void TrainerManager::carry_out(const core::NotifyResume& notify) {
  if (RankPort* port = port_of(notify.rank)) port->resume_at(notify.resume_at);
}

void TrainerManager::carry_out(const core::NotifyHalt& notify) {
  if (RankPort* port = port_of(notify.rank)) port->halt({notify.halt, notify.iteration});
}

void TrainerManager::ring(Rank rank) {
  if (const RankPort* port = port_of(rank)) port->ring();
}

void TrainerManager::carry_out(const core::Fence& fence) {
  ++deps_.event_log.counters.refused;
  deps_.event_log.note(fence.text);
  if (RankPort* port = port_of({fence.rank, fence.instance})) port->fence(fence.incarnation);
}

std::optional<TrainerManager::PendingRestore> TrainerManager::take_pending(Rank rank) {
  const auto found = restores_.find(rank);
  if (found == restores_.end()) return std::nullopt;
  PendingRestore pending = std::move(found->second);
  restores_.erase(found);
  return pending;
}

// A rank that knows its layout asks again only once it has made its tensors. All may be here before that.
void TrainerManager::carry_out(const core::RestoreReady& ready) {
  const auto trainer = trainers_.find(ready.rank);
  if (trainer != trainers_.end() && !trainer->second.ready_at) trainer->second.ready_at = Clock::now();
  const auto pending = take_pending(ready.rank);
  if (!pending) return;
  try {
    Reply reply = restore_reply(ready, deps_.index);
    const Clock::time_point ready_at = *trainer->second.ready_at;
    reply.fields["fetch_ms"] = milliseconds_between(trainer->second.asked_at.value_or(ready_at), ready_at);
    no_longer_waits(ready.rank);
    add_receive_buffer(ready.rank, reply);
    served_.insert_or_assign(ready.rank, ready);
    trainers_.at(ready.rank).progress_at = Clock::now();
    trainers_.at(ready.rank).port->joined(ready.incarnation);
    watch_.joined(ready.rank, ready.incarnation);
    pending->respond(std::move(reply));
  } catch (const Failure& failure) {
    pending->respond(refusal(failure.status(), failure.what()));
  } catch (const std::exception& error) {
    pending->respond(refusal(CKPT_ERR_INTERNAL, bug_text(std::string("the agent could not answer: ") + error.what())));
  }
}

// GPU replication never makes a restore fail.
void TrainerManager::add_receive_buffer(Rank rank, Reply& reply) {
  const auto receive_buffer = deps_.replications.receive_buffer_fd(rank);
  if (!receive_buffer) return;
  try {
    reply.fds.push_back(duplicate(*receive_buffer));
    reply.fields["replication"] = {{"fd", reply.fds.size() - 1}};
  } catch (const Failure& failure) {
    deps_.replications.refuse(rank, failure.what());
  }
}

void TrainerManager::carry_out(const core::RestoreFailed& failed) {
  const auto pending = take_pending(failed.rank);
  if (!pending) return;
  const auto status = [&] {
    switch (failed.error) {
      case core::RestoreError::superseded:
        return CKPT_ERR_SUPERSEDED;
      case core::RestoreError::refused:
        return CKPT_ERR_MISMATCH;
      case core::RestoreError::lost:
        return CKPT_ERR_LOST;
      case core::RestoreError::mismatch:
        return CKPT_ERR_MISMATCH;
    }
    return CKPT_ERR_INTERNAL;
  };
  no_longer_waits(failed.rank);
  pending->respond(refusal(status(), failed.text));
}

void TrainerManager::notify(const arena::HealthNews& news) {
  for (const auto& [rank, trainer] : trainers_) {
    arena::HealthPage page = trainer.port->control().health();
    page.publish(news);
    page.heartbeat();
  }
}

void TrainerManager::tick() {
  deps_.scheduler.listen();
  watch_ranks();
  tell_arrivals();  // a rank may have been admitted after the fetch began
}

void TrainerManager::watch_ranks() {
  if (auto news = watch_.look(Clock::now())) deps_.core.handle(std::move(*news));
}

bool TrainerManager::has_overdue_restore() const {
  return std::any_of(restores_.begin(), restores_.end(),
                     [](const auto& each) { return each.second.deadline.passed(); });
}

void TrainerManager::end_overdue_restores(const std::string& why) {
  for (auto it = restores_.begin(); it != restores_.end();) {
    if (!it->second.deadline.passed()) {
      ++it;
      continue;
    }
    it->second.respond(
        refusal(CKPT_ERR_TIMEOUT, "the restore of rank " + std::to_string(it->first) + " did not end in time: " + why));
    no_longer_waits(it->first);
    it = restores_.erase(it);
  }
}

}  // namespace ckpt::agent
