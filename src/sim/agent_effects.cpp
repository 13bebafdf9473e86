// How a simulated ckptd carries out each effect of the core.
#include <algorithm>
#include <utility>

#include "sim/agent.hpp"
#include "sim/world.hpp"

namespace ckpt::sim {

using namespace core;

void Agent::carry_out(const Effect& effect) {
  world_.trace.mark(effect.index());
  world_.trace.line(world_.event_queue.now(), [&] { return text("node ", machine_.id, " -> ", describe(effect)); });
  if (world_.event_queue.now() < machine_.effects_fail_until && fails(effect)) return;
  std::visit([this](const auto& content) { on(content); }, effect);
}

// Effects that need more than memory can fail. If the core waits for an answer to the effect, it gets one. Otherwise it
// hears nothing.
bool Agent::fails(const Effect& effect) {
  if (!world_.random.chance(300)) return false;
  const auto answer = [this](Event event) {
    later(1, [event = std::move(event)](Agent& agent) { agent.handle(event); });
  };
  const bool is_silent = std::holds_alternative<Send>(effect) || std::holds_alternative<SwapLeaderRecord>(effect) ||
                         std::holds_alternative<SwapIncarnationRecord>(effect) ||
                         std::holds_alternative<ReadAssignments>(effect) ||
                         std::holds_alternative<RemoveAssignments>(effect);
  if (const auto* send = std::get_if<Send>(&effect)) world_.invariants.sending(machine_, send->message);
  if (const auto* fetch = std::get_if<StartFetch>(&effect)) {
    answer(FetchEnded{fetch->fetch, FetchResult::failed});
  } else if (const auto* write = std::get_if<StartWrite>(&effect)) {
    answer(WriteEnded{write->checkpoint, "it failed"});
  } else if (const auto* commit = std::get_if<FinalizeCheckpoint>(&effect)) {
    answer(FinalizeEnded{commit->checkpoint, "it failed"});
  } else if (std::holds_alternative<ListStorage>(effect)) {
    StorageListed listed;
    listed.trouble = "it failed";
    answer(listed);
  } else if (!is_silent) {
    return false;
  }
  world_.trace.line(world_.event_queue.now(), [&] { return text("node ", machine_.id, " !! that fails"); });
  return true;
}

void Agent::on(const Send& send) {
  world_.invariants.sending(machine_, send.message);
  world_.network.send(machine_.id, send.to, send.message);
}

void Agent::on(const SwapLeaderRecord& swap) {
  world_.invariants.writing_leader(machine_, swap.record);
  world_.store.swap(machine_.id, swap, store_answer());
}

// A decision is judged now, when the leader makes it, by what the leader could know. It may be on record only later.
void Agent::on(const SwapIncarnationRecord& swap) {
  const Invariants::Asked asked{world_.event_queue.now(), world_.invariants.judge(machine_, swap.record)};
  write_assignments(swap, 0,
                    [&world = world_, node = machine_.id, asked](const IncarnationRecordRead& before,
                                                                 const IncarnationRecordRead& now) {
                      world.invariants.incarnation_written(node, before, now, asked);
                    });
}

// Writes the records of the rank assignments one after another, and the incarnation's record last.
void Agent::write_assignments(const SwapIncarnationRecord& swap, std::size_t number,
                              const Store::IncarnationWritten& written) {
  const auto& assignments = swap.assignments;
  const std::size_t begin = number * Store::assignments_per_record;
  if (begin >= assignments.size()) return world_.store.swap(machine_.id, swap, written, store_answer());
  const auto end = std::min(begin + Store::assignments_per_record, assignments.size());
  const auto go_on = [&world = world_, node = machine_.id, id = id_, swap, number, written] {
    if (Agent* agent = world.agent(node, id))
      agent->take([swap, number, written](Agent& self) { self.write_assignments(swap, number + 1, written); });
  };
  world_.store.write_assignments(machine_.id, swap.record.assignments, number,
                                 {assignments.begin() + static_cast<std::ptrdiff_t>(begin),
                                  assignments.begin() + static_cast<std::ptrdiff_t>(end)},
                                 go_on);
}

void Agent::on(const ReadAssignments& read) { world_.store.read_assignments(machine_.id, read.name, store_answer()); }
void Agent::on(const RemoveAssignments& removal) { world_.store.remove_assignments(machine_.id, removal); }

void Agent::on(const Persist& persist) {
  world_.invariants.persisting(machine_, persist);
  machine_.arena.highest_commit = persist.highest_commit;
  machine_.arena.newest_seen = persist.newest_seen;
  machine_.arena.newest_damaged = persist.newest_damaged;
  machine_.arena.epoch = persist.epoch;
}

void Agent::on(const GrantSlots& grant) {
  Control& control = machine_.arena.controls[grant.rank];
  for (const SlotRef& ref : grant.slots) {
    world_.invariants.granting(machine_, ref, control.instance);
    machine_.arena.find(ref)->granted_to = control.instance;
  }
  const auto left = control.own_slots();
  if (grant.spare && std::find(left.begin(), left.end(), *grant.spare) == left.end()) {
    world_.invariants.granting(machine_, *grant.spare, control.instance);
    machine_.arena.find(*grant.spare)->granted_to = control.instance;
  }
  control.slots = grant.slots;
  control.spare = grant.spare;
  control.used_spare = false;
  ++control.grant;
  open_grants_.insert(grant.rank);
}

void Agent::on(const AddSlots& add) {
  const auto found = sessions_.find(add.rank);
  if (found == sessions_.end()) return;
  later(world_.random.between(5, 150), [add, instance = found->second.instance](Agent& agent) {
    if (agent.session_of(instance) == nullptr || agent.world_.event_queue.now() < agent.machine_.memory_full_until)
      return;
    for (const std::string& shard : add.shards) {
      Segment& segment = agent.machine_.arena.segments[{add.rank, shard}];
      segment.resize(std::max<std::size_t>(segment.size(), add.slots + agent.spare_slots(add.rank, shard)));
    }
    agent.handle(agent.segments_of(add.rank, add.shards));
  });
}

void Agent::on(const NotifyCommit& notify) {
  world_.invariants.commit_notified(machine_, notify.rank, notify.committed);
  machine_.arena.controls[notify.rank].committed = notify.committed;
}

void Agent::on(const NotifyStored& notify) { world_.invariants.stored_notified(machine_, notify.rank, notify.stored); }

void Agent::on(const NotifyResume& notify) { machine_.arena.controls[notify.rank].resume_at = notify.resume_at; }

void Agent::on(const NotifyHalt& notify) {
  Control& control = machine_.arena.controls[notify.rank];
  control.halt = notify.halt;
  control.halt_at = notify.iteration;
  if (Trainer* trainer = world_.trainer(control.instance)) trainer->hear_of_halt();
}

void Agent::on(const Fence& fence) {
  Control& control = machine_.arena.controls[fence.rank];
  if (control.instance == fence.instance) control.fenced = true;
}

void Agent::on(const RestoreReady& ready) {
  const auto found = sessions_.find(ready.rank);
  if (found == sessions_.end() || !found->second.waits_for_restore) return;
  TrainerSession& session = found->second;
  session.waits_for_restore = false;
  world_.invariants.restore_offered(machine_, session.instance, ready);
  watch_.joined(ready.rank, ready.incarnation);
  world_.watch_check.joined(machine_.id, ready.rank, session.instance, ready.incarnation);
  if (ready.decision.verdict == Verdict::restore) {
    session.reads = {ready.private_.slot};
    for (const auto* sources : {&ready.main, &ready.taken})
      for (const RestoreSource& part : *sources) session.reads.push_back(part.slot);
    for (const SlotRef& ref : session.reads) ++machine_.arena.find(ref)->readers;
  }
  world_.notify(session.instance, [ready](Trainer& trainer) { trainer.restore_ready(ready); });
}

void Agent::on(const RestoreFailed& failed) {
  const auto found = sessions_.find(failed.rank);
  if (found == sessions_.end() || !found->second.waits_for_restore) return;
  found->second.waits_for_restore = false;
  world_.invariants.restore_refused(failed);
  world_.notify(found->second.instance, [failed](Trainer& trainer) { trainer.restore_failed(failed); });
}

void Agent::on(const StartFetch& fetch) {
  Arena& arena = machine_.arena;
  const bool is_new = !arena.segments.contains({fetch.slot.rank, fetch.slot.shard});
  if (is_new && world_.event_queue.now() < machine_.memory_full_until) {
    later(1, [fetch](Agent& agent) { agent.handle(FetchEnded{fetch.fetch, FetchResult::no_space}); });
    return;
  }
  const Config& core = world_.settings.core;
  arena.make_segment(fetch.slot.rank, fetch.slot.shard,
                     fetch.slot.rank == held_rank ? core.held_slots : core.local_slots);
  world_.invariants.filling(machine_, fetch.slot);
  world_.transfers.start(machine_, *this, fetch);
}

void Agent::on(const CancelFetch& cancel) { world_.transfers.cancel(machine_.id, id_, cancel.fetch); }

void Agent::on(const DropSlot& drop) {
  world_.invariants.dropping(machine_, drop.slot);
  Slot& slot = *machine_.arena.find(drop.slot);
  slot.counted = false;
  slot.dropped = slot.header.checkpoint;
  slot.draining = true;
  release_if_idle(drop.slot);
}

void Agent::on(const ReleaseSegment& release) {
  world_.invariants.releasing(machine_, release.rank, release.shard);
  machine_.arena.segments.erase({release.rank, release.shard});
}

void Agent::on(const MemberChanged& changed) { world_.invariants.member_notified(machine_, changed); }

void Agent::on(const ListStorage&) { world_.storage.list(*this); }
void Agent::on(const StartWrite& write) { world_.storage.write(machine_, *this, write); }
void Agent::on(const FinalizeCheckpoint& commit) { world_.storage.commit(*this, machine_.id, commit); }

}  // namespace ckpt::sim
