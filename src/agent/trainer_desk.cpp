#include "agent/trainer_desk.hpp"

#include <fcntl.h>
#include <unistd.h>

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

UniqueFd open_to_read(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw_errno(CKPT_ERR_SYSTEM, "cannot open " + path + " for a trainer");
  return fd;
}

std::string control_path(const std::string& directory, Rank rank) {
  return directory + "/rank-" + std::to_string(rank) + ".control";
}

}  // namespace

TrainerDesk::TrainerDesk(Colleagues colleagues, std::map<Rank, arena::Grant> granted)
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
      std::optional<arena::Grant> outstanding;
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
      with_.to_core(hello);
    }
    Reply reply;
    reply.fds.push_back(duplicate(known->control().fd()));
    respond(std::move(reply));
  } catch (const Failure& failure) {
    respond(refusal(goes_on ? CKPT_ERR_SUPERSEDED : failure.status(), failure.what()));
  }
}

void TrainerDesk::exited(Asker asker) {
  if (RankPort* port = port_of(asker); port != nullptr) {
    port->fence(port->hello().incarnation);  // a process that goes on without its engine is stopped here at the latest
    ::unlink(control_path(with_.directory, asker.rank).c_str());
    trainers_.erase(asker.rank);
    restores_.erase(asker.rank);
    served_.erase(asker.rank);
  } else if (port_of(asker.rank) == nullptr) {
    ::unlink(control_path(with_.directory, asker.rank).c_str());
    granted_.erase(asker.rank);
  }
  with_.to_core(protocol::TrainerExited{asker.rank, asker.instance});
}

void TrainerDesk::restore(Asker asker, std::int64_t timeout_ms, const Respond& respond) {
  if (refuse_unknown(asker, respond)) return;
  await_restore(asker.rank, timeout_ms, respond);
}

void TrainerDesk::await_restore(Rank rank, std::int64_t timeout_ms, const Respond& respond) {
  restores_.insert_or_assign(rank, PendingRestore{respond, Deadline::in_ms(timeout_ms), Clock::now()});
  with_.to_core(protocol::RestoreAsked{rank});
}

void TrainerDesk::restored(Asker asker, const Respond& respond) {
  if (refuse_unknown(asker, respond)) return;
  with_.to_core(protocol::RestoreDone{asker.rank});
  respond({});
}

void TrainerDesk::corrupt(Asker asker, const CorruptRequest& request, std::int64_t timeout_ms, const Respond& respond) {
  if (refuse_unknown(asker, respond)) return;
  const auto served = served_.find(asker.rank);
  if (served == served_.end() ||
      (served->second.main_slot.shard != request.shard && served->second.private_slot.shard != request.shard))
    return respond(refusal(CKPT_ERR_INVALID, "this rank was given no shard " + request.shard + " to restore"));
  with_.chronicle.note("rank " + std::to_string(asker.rank) + " found shard " + request.shard + " damaged");
  const protocol::RestoreReady& ready = served->second;
  const SlotRef slot = ready.main_slot.shard == request.shard ? ready.main_slot : ready.private_slot;
  // Once the damaged piece is dropped, the core waits until another source has brought it home again.
  with_.verify(slot, [this, asker, timeout_ms, respond] { restore(asker, timeout_ms, respond); });
}

void TrainerDesk::reserve(Asker asker, const ReserveRequest& request, const Respond& respond) {
  if (refuse_unknown(asker, respond)) return;
  const protocol::TrainerHello& hello = port_of(asker)->hello();
  const SegmentKey main{hello.rank, hello.main_shard}, private_{hello.rank, hello.private_shard};
  const SlotNeed main_need{request.main_bytes, request.main_layout_bytes};
  const SlotNeed private_need{request.private_bytes, request.private_layout_bytes};
  const std::uint64_t for_peers =
      with_.bytes_for_peers(with_.segments.segment_bytes({protocol::held_rank, main.shard}, main_need),
                            with_.segments.segment_bytes({protocol::held_rank, private_.shard}, private_need));
  with_.segments.ensure({{main, main_need}, {private_, private_need}}, for_peers,
                        [this, asker, main, private_, respond](const std::optional<Failure>& failure) {
                          if (failure) return respond(refusal(failure->status(), failure->what()));
                          if (refuse_unknown(asker, respond)) return;
                          try {
                            Reply reply;
                            for (const SegmentKey& key : {main, private_})
                              reply.fds.push_back(duplicate(with_.segments.find(key)->fd()));
                            with_.to_core(protocol::SegmentsReady{asker.rank});
                            respond(std::move(reply));
                          } catch (const Failure& no_descriptor) {
                            respond(refusal(no_descriptor.status(), no_descriptor.what()));
                          }
                        });
}

void TrainerDesk::look(Asker asker) {
  RankPort* port = port_of(asker);
  if (port == nullptr) return;
  port->looked();  // before the words are read: what changes afterwards rings again
  RankPort::Seen seen = port->look(with_.segments);
  if (!seen.complaint.empty()) with_.chronicle.note(seen.complaint);
  if (seen.skipped) ++with_.chronicle.counters.skips;
  if (seen.captured) {
    const SegmentKey main{asker.rank, port->hello().main_shard}, private_{asker.rank, port->hello().private_shard};
    with_.index.add({main.rank, main.shard, seen.used.main_slot}, with_.segments.find(main), std::move(seen.main));
    with_.index.add({private_.rank, private_.shard, seen.used.private_slot}, with_.segments.find(private_),
                    std::move(seen.private_));
    with_.to_core(*seen.captured);
  }
  if (seen.progress) with_.to_core(*seen.progress);
}

// ---- Effects ----

void TrainerDesk::carry_out(const protocol::Grant& grant) {
  if (RankPort* port = port_of(grant.rank)) port->grant(grant.main_slot, grant.private_slot);
}

void TrainerDesk::carry_out(const protocol::TellCommit& tell) {
  if (RankPort* port = port_of(tell.rank)) port->commit(tell.committed);
}

void TrainerDesk::carry_out(const protocol::TellResume& tell) {
  if (RankPort* port = port_of(tell.rank)) port->resume_at(tell.resume_at);
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
    served_.insert_or_assign(ready.rank, ready);
    pending->respond(std::move(reply));
  } catch (const Failure& failure) {
    pending->respond(refusal(failure.status(), failure.what()));
  }
}

Reply TrainerDesk::restore_reply(const protocol::RestoreReady& ready) {
  Reply reply;
  reply.message = ready.decision.text;
  reply.fields = {{"found", ready.decision.verdict == protocol::Verdict::restore},
                  {"behind", ready.decision.behind},
                  {"status_unknown", ready.decision.status_unknown},
                  {"incarnation", ready.incarnation},
                  {"iteration", -1}};
  if (ready.decision.verdict != protocol::Verdict::restore) return reply;
  reply.fields["iteration"] = ready.decision.version.iteration();
  const auto add = [&](const char* name, const SlotRef& slot, protocol::Tier tier) {
    const Pin piece = with_.index.find(slot);
    if (piece == nullptr) throw Failure(CKPT_ERR_INTERNAL, "a piece to restore is not where the core says it is");
    reply.fields[name] = {{"fd", reply.fds.size()},
                          {"slot", slot.slot},
                          {"tier", static_cast<int>(tier)},
                          {"bytes", piece->manifest().length_bytes}};
    reply.fds.push_back(open_to_read(piece->segment().path()));
  };
  add("main", ready.main_slot, ready.main_tier);
  add("private", ready.private_slot, ready.private_tier);
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

void TrainerDesk::tick() {
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
