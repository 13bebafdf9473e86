#include "agent/trainer_desk.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "base/same_file.hpp"

namespace ckpt::agent {
namespace {

using nlohmann::json;
using protocol::Rank;
using protocol::SlotRef;

Reply refusal(ckpt_status status, std::string message) { return {status, std::move(message), json::object(), {}}; }

UniqueFd duplicate(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) throw_errno(CKPT_ERR_SYSTEM, "cannot duplicate a descriptor for a trainer");
  return copy;
}

// A trainer may write what it is the writer of, and so pin it for its GPU; all else it can only read.
UniqueFd descriptor_for(Rank rank, const arena::Segment& segment) {
  if (segment.spec().kind == arena::SegmentKind::local && segment.spec().rank == rank) return duplicate(segment.fd());
  // Through the descriptor: the file may have lost its name.
  UniqueFd fd(::open(("/proc/self/fd/" + std::to_string(segment.fd())).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw_errno(CKPT_ERR_SYSTEM, "cannot open " + segment.path() + " for a trainer");
  return fd;
}

std::string control_path(const std::string& directory, Rank rank) {
  return directory + "/rank-" + std::to_string(rank) + ".control";
}

}  // namespace

TrainerDesk::TrainerDesk(Colleagues colleagues, std::map<Rank, OpenGrant> granted)
    : with_(std::move(colleagues)), granted_(std::move(granted)) {}

RankPort* TrainerDesk::port_of(Rank rank) {
  const auto found = trainers_.find(rank);
  return found == trainers_.end() ? nullptr : found->second.port.get();
}

RankPort* TrainerDesk::port_of(Asker asker) {
  RankPort* port = port_of(asker.rank);
  return port != nullptr && port->hello().instance == asker.instance ? port : nullptr;
}

bool TrainerDesk::refuse_unknown(Asker asker, const Respond& respond) {
  if (port_of(asker) != nullptr) return false;
  respond(refusal(CKPT_ERR_SUPERSEDED, "rank " + std::to_string(asker.rank) + " was claimed by another trainer"));
  return true;
}

// ---- Requests ----

void TrainerDesk::hello(const protocol::TrainerHello& hello, std::int64_t pid, const Respond& respond) {
  const bool goes_on = hello.incarnation != 0;
  RankPort* known = port_of({hello.rank, hello.instance});
  try {
    if (known == nullptr) {
      std::optional<OpenGrant> outstanding;
      if (const auto granted = granted_.find(hello.rank); granted != granted_.end() && goes_on)
        outstanding = granted->second;
      granted_.erase(hello.rank);
      auto control = goes_on ? arena::Control::attach(with_.directory, hello.rank)
                             : arena::Control::create(with_.directory, hello.rank);
      const Asker asker{hello.rank, hello.instance};
      auto port = std::make_unique<RankPort>(hello, std::move(control), outstanding,
                                             [this, asker] { with_.queue.post([this, asker] { look(asker); }); });
      known = port.get();
      trainers_[hello.rank] = {std::move(port), pid};
      with_.scheduler.add(hello.rank, known->shared_control());
      with_.to_core(hello);
    }
    Reply reply;
    reply.fds.push_back(duplicate(known->control().fd()));
    respond(std::move(reply));
  } catch (const Failure& failure) {
    // Without its page it cannot go on. All else may pass: it asks again.
    const bool is_page_lost = goes_on && failure.status() == CKPT_ERR_CORRUPT;
    respond(refusal(is_page_lost ? CKPT_ERR_SUPERSEDED : failure.status(), failure.what()));
  }
}

void TrainerDesk::exited(Asker asker) {
  if (RankPort* port = port_of(asker); port != nullptr) {
    port->fence(0);  // a process that goes on without its engine is stopped here at the latest
    unlink_same(control_path(with_.directory, asker.rank), port->control().fd());
    trainers_.erase(asker.rank);
    with_.scheduler.remove(asker.rank);
    restores_.erase(asker.rank);
    served_.erase(asker.rank);
    with_.paths.gone(asker.rank);
  } else if (port_of(asker.rank) == nullptr) {
    ::unlink(control_path(with_.directory, asker.rank).c_str());
    granted_.erase(asker.rank);
    with_.paths.gone(asker.rank);
  }
  with_.to_core(protocol::TrainerExited{asker.rank, asker.instance});
}

void TrainerDesk::restore(Asker asker, const RestoreRequest& request, const Respond& respond) {
  if (refuse_unknown(asker, respond)) return;
  trainers_.at(asker.rank).wants_path = request.wants_path;
  await_restore(asker.rank, request.timeout_ms, respond);
}

void TrainerDesk::await_restore(Rank rank, std::int64_t timeout_ms, const Respond& respond) {
  restores_.insert_or_assign(rank, PendingRestore{respond, Deadline::in_ms(timeout_ms), Clock::now()});
  with_.to_core(protocol::RestoreAsked{rank, trainers_.at(rank).wants_path});
}

void TrainerDesk::restored(Asker asker, const std::string& no_path, const Respond& respond) {
  if (refuse_unknown(asker, respond)) return;
  if (!no_path.empty()) with_.paths.refuse(asker.rank, no_path);
  with_.to_core(protocol::RestoreDone{asker.rank});
  respond({});
}

void TrainerDesk::corrupt(Asker asker, const CorruptRequest& request, std::int64_t timeout_ms, const Respond& respond) {
  if (refuse_unknown(asker, respond)) return;
  const SlotRef* slot = served_slot(asker.rank, request.shard);
  if (slot == nullptr)
    return respond(refusal(CKPT_ERR_INVALID, "this rank was given no shard " + request.shard + " to restore"));
  with_.chronicle.note("rank " + std::to_string(asker.rank) + " found shard " + request.shard + " damaged");
  // Once the damaged piece is dropped, the core waits until another source has brought it home again.
  with_.verify(*slot, [this, asker, timeout_ms, respond] {
    if (!refuse_unknown(asker, respond)) await_restore(asker.rank, timeout_ms, respond);
  });
}

// Of what the rank was last given to restore from.
const SlotRef* TrainerDesk::served_slot(Rank rank, const std::string& shard) const {
  const protocol::RestoreReady* ready = served(rank);
  if (ready == nullptr) return nullptr;
  if (ready->private_.slot.shard == shard) return &ready->private_.slot;
  const auto part = std::find_if(ready->main.begin(), ready->main.end(),
                                 [&](const protocol::Source& source) { return source.slot.shard == shard; });
  return part == ready->main.end() ? nullptr : &part->slot;
}

const protocol::RestoreReady* TrainerDesk::served(Rank rank) const {
  const auto found = served_.find(rank);
  return found == served_.end() ? nullptr : &found->second;
}

void TrainerDesk::reserve(Asker asker, const ReserveRequest& request, const Respond& respond) {
  if (refuse_unknown(asker, respond)) return;
  trainers_.at(asker.rank).shortage = request.shortage;
  std::vector<std::pair<SegmentKey, SlotNeed>> needs;
  std::vector<std::string> shards;
  std::uint64_t rank_bytes = 0;
  for (const SlotRequest& slot : request.slots) {
    shards.push_back(slot.shard);
    needs.push_back({{asker.rank, slot.shard}, {slot.bytes, slot.layout_bytes}});
    rank_bytes += with_.segments.segment_bytes({protocol::held_rank, slot.shard}, needs.back().second);
  }
  with_.segments.ensure(
      needs, with_.bytes_for_peers(rank_bytes), [this, asker, shards, respond](const std::optional<Failure>& failure) {
        if (failure) return respond(refusal(failure->status(), failure->what()));
        if (refuse_unknown(asker, respond)) return;
        try {
          Reply reply;
          for (const std::string& shard : shards)
            reply.fds.push_back(duplicate(with_.segments.find({asker.rank, shard})->fd()));
          with_.to_core(protocol::SegmentsReady{asker.rank, shards});
          respond(std::move(reply));
        } catch (const Failure& no_descriptor) {
          respond(refusal(no_descriptor.status(), no_descriptor.what()));
        } catch (const std::exception& error) {
          respond(refusal(CKPT_ERR_INTERNAL, std::string("the agent could not answer: ") + error.what()));
        }
      });
}

void TrainerDesk::look(Asker asker) {
  RankPort* port = port_of(asker);
  if (port == nullptr) return;
  port->looked();  // before the words are read: what changes afterwards rings again
  RankPort::Seen seen = port->look(with_.segments);
  with_.scheduler.listen();
  trace_capture(asker.rank, seen);
  if (!seen.complaint.empty()) with_.chronicle.note(seen.complaint);
  if (seen.skipped) ++with_.chronicle.counters.skips;
  if (seen.captured) {
    for (auto& [slot, manifest] : seen.pieces)
      with_.index.add(slot, with_.segments.find({slot.rank, slot.shard}), std::move(manifest));
    with_.to_core(*seen.captured);
  }
  if (seen.captured || seen.progress) trainers_.at(asker.rank).progress_at = Clock::now();
  trainers_.at(asker.rank).failed = seen.failed;
  if (seen.progress) with_.to_core(*seen.progress);
  with_.paths.look(asker.rank);
}

// From snapshot(), which marks an iteration, until its word was heard here.
void TrainerDesk::trace_capture(Rank rank, const RankPort::Seen& seen) {
  if (!seen.captured) return;
  if (const auto since_us = with_.scheduler.iteration_began_us(rank))
    with_.trace.add({TraceEvent::Kind::capture,
                     *since_us,
                     microseconds(Clock::now()),
                     rank,
                     seen.captured->pieces.front().version,
                     0,
                     {},
                     0});
}

// ---- Effects ----

void TrainerDesk::carry_out(const protocol::Grant& grant) {
  if (RankPort* port = port_of(grant.rank)) port->grant(grant.share, grant.slots);
}

void TrainerDesk::carry_out(const protocol::TellCommit& tell) {
  if (RankPort* port = port_of(tell.rank)) port->commit(tell.committed);
}

void TrainerDesk::carry_out(const protocol::TellStored& tell) {
  if (RankPort* port = port_of(tell.rank)) port->stored(tell.stored);
}

void TrainerDesk::carry_out(const protocol::TellResume& tell) {
  if (RankPort* port = port_of(tell.rank)) port->resume_at(tell.resume_at);
}

void TrainerDesk::ring(Rank rank) {
  if (const RankPort* port = port_of(rank)) port->ring();
}

void TrainerDesk::carry_out(const protocol::Fence& fence) {
  ++with_.chronicle.counters.refused;
  with_.chronicle.note(fence.text);
  if (RankPort* port = port_of({fence.rank, fence.instance})) port->fence(fence.incarnation);
}

std::optional<TrainerDesk::PendingRestore> TrainerDesk::take_pending(Rank rank) {
  const auto found = restores_.find(rank);
  if (found == restores_.end()) return std::nullopt;
  PendingRestore pending = std::move(found->second);
  restores_.erase(found);
  return pending;
}

void TrainerDesk::carry_out(const protocol::RestoreReady& ready) {
  const auto pending = take_pending(ready.rank);
  if (!pending) return;
  try {
    Reply reply = restore_reply(ready);
    reply.fields["fetch_ms"] = milliseconds_between(pending->asked_at, Clock::now());
    add_landing(ready.rank, reply);
    served_.insert_or_assign(ready.rank, ready);
    trainers_.at(ready.rank).progress_at = Clock::now();
    trainers_.at(ready.rank).port->joined(ready.incarnation);
    pending->respond(std::move(reply));
  } catch (const Failure& failure) {
    pending->respond(refusal(failure.status(), failure.what()));
  } catch (const std::exception& error) {
    pending->respond(refusal(CKPT_ERR_INTERNAL, std::string("the agent could not answer: ") + error.what()));
  }
}

// No restore fails for want of the path.
void TrainerDesk::add_landing(Rank rank, Reply& reply) {
  const auto landing = with_.paths.landing_fd(rank);
  if (!landing) return;
  try {
    reply.fds.push_back(duplicate(*landing));
    reply.fields["path"] = {{"fd", reply.fds.size() - 1}};
  } catch (const Failure& failure) {
    with_.paths.refuse(rank, failure.what());
  }
}

Reply TrainerDesk::restore_reply(const protocol::RestoreReady& ready) {
  Reply reply;
  reply.message = ready.decision.text;
  reply.fields = {{"found", ready.decision.verdict == protocol::Verdict::restore},
                  {"behind", ready.decision.behind},
                  {"status_unknown", ready.decision.status_unknown},
                  {"incarnation", ready.incarnation},
                  {"share", {{"first", ready.share.first}, {"of", ready.share.of}, {"stored", ready.share.stored}}},
                  {"iteration", -1}};
  if (ready.decision.verdict != protocol::Verdict::restore) return reply;
  reply.fields["iteration"] = ready.decision.version.iteration();
  const auto add = [&](const protocol::Source& source) {
    const Pin piece = with_.index.find(source.slot);
    if (piece == nullptr) throw Failure(CKPT_ERR_INTERNAL, "a piece to restore is not where the core says it is");
    const json entry = {{"fd", reply.fds.size()},
                        {"slot", source.slot.slot},
                        {"tier", static_cast<int>(source.tier)},
                        {"bytes", piece->manifest().length_bytes}};
    reply.fds.push_back(descriptor_for(ready.rank, piece->segment()));
    return entry;
  };
  reply.fields["main"] = json::array();
  for (const protocol::Source& part : ready.main) reply.fields["main"].push_back(add(part));
  reply.fields["private"] = add(ready.private_);
  return reply;
}

void TrainerDesk::carry_out(const protocol::RestoreFailed& failed) {
  const auto pending = take_pending(failed.rank);
  if (!pending) return;
  const auto status = [&] {
    switch (failed.error) {
      case protocol::RestoreError::superseded:
        return CKPT_ERR_SUPERSEDED;
      case protocol::RestoreError::refused:
        return CKPT_ERR_MISMATCH;
      case protocol::RestoreError::lost:
        return CKPT_ERR_LOST;
      case protocol::RestoreError::mismatch:
        return CKPT_ERR_MISMATCH;
    }
    return CKPT_ERR_INTERNAL;
  };
  pending->respond(refusal(status(), failed.text));
}

void TrainerDesk::tell(const arena::HealthNews& news) {
  for (const auto& [rank, trainer] : trainers_) {
    arena::HealthBoard board = trainer.port->control().health();
    board.tell(news);
    board.beat();
  }
}

void TrainerDesk::tick() {
  with_.scheduler.listen();
  for (auto it = restores_.begin(); it != restores_.end();) {
    if (!it->second.deadline.passed()) {
      ++it;
      continue;
    }
    it->second.respond(refusal(CKPT_ERR_TIMEOUT, "the restore of rank " + std::to_string(it->first) +
                                                     " did not end in time: " + with_.what_is_missing()));
    it = restores_.erase(it);
  }
}

}  // namespace ckpt::agent
