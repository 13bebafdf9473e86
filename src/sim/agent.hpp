// Agent is the simulator's ckptd. Like the real one, it drives one core::Node. It can crash between any two effects,
// and freeze and wake. It shares the arena's control words (memory.hpp) with its trainers. The trainers' calls of its
// functions stand for their socket. A Machine owns the agent and outlives it. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "core/node.hpp"
#include "core/rank_watch.hpp"
#include "core/repeated_updates.hpp"
#include "sim/event_queue.hpp"
#include "sim/memory.hpp"
#include "sim/store.hpp"

namespace ckpt::sim {

struct Machine;
class Trainer;
class World;

class Agent {
 public:
  // Attaches to the machine's arena, as it is. `id`: the number of this run of the agent.
  Agent(World& world, Machine& machine, std::uint64_t id);

  void start();

  std::uint64_t id() const { return id_; }
  const core::Node& node() const { return node_; }
  core::RepeatedUpdates& repeated_updates() { return repeated_updates_; }
  bool is_frozen() const { return frozen_; }
  void freeze();
  void wake();
  void crash_in_next_effects(int after) { crash_after_effects_ = after; }

  // Runs `input` after the delay, if this run of the agent still exists then. If the agent is frozen, `input` runs when
  // it wakes.
  void later(TimeMs delay_ms, std::function<void(Agent&)> input);
  void receive(core::Event event);  // handles it now, or if the agent is frozen, when it wakes

  // Requests of trainers over the socket. `instance` names the trainer process.
  void greet(std::uint64_t instance, TimeMs waited_ms);
  void ask_restore(std::uint64_t instance);
  void end_restore(std::uint64_t instance, const std::vector<SlotRef>& corrupt);  // corrupt is empty: it has restored
  void reserve(std::uint64_t instance);
  core::SegmentsReady segments_of(Rank rank, const std::vector<std::string>& shards) const;
  std::size_t spare_slots(Rank rank, const std::string& shard) const;
  void read_words(Rank rank);  // the trainer has rung the doorbell
  void report_trouble(std::uint64_t instance);
  // The trainer's process has died, or its engine is closed. `died`: true if the process died.
  void trainer_ended(std::uint64_t instance, bool died);

  // Results of transfers.
  void fetch_ended(std::uint64_t fetch, const SlotRef& slot, core::FetchResult result, const PieceInfo& made);
  void handle(const core::Event& event);
  void verify(const SlotRef& slot);  // a reader got wrong bytes from this slot: the agent checks them itself
  void unpin(const SlotRef& slot);

 private:
  // A trainer that has said hello to this agent.
  struct TrainerSession {
    std::uint64_t instance = 0;
    bool waits_for_restore = false;
    std::vector<SlotRef> reads;  // slots that it restores from, pinned meanwhile
    std::int64_t notified_attempted = -1;
    std::int64_t notified_capturing = -1;
    core::FreezeAnswer notified_freeze;
    std::uint64_t marks_read = 0;
  };

  static Arena& swept(World& world, Arena& arena);
  static core::Recovered attach(Arena& arena, TimeMs now);
  static core::Config configure(const World& world, const Machine& machine);

  void take(std::function<void(Agent&)> input);
  void tick();
  void tick_when_wanted();
  void see_rank(Rank rank);
  void look_at_ranks();
  double local_s() const;
  void poll();
  TrainerSession* session_of(std::uint64_t instance);
  void end_session(Rank rank);
  void take_left_behind(Rank rank, bool is_whole);
  std::function<void(const core::Event&)> store_answer();
  void release_if_idle(const SlotRef& ref);

  void carry_out(const core::Effect& effect);
  bool fails(const core::Effect& effect);
  void on(const core::Send& send);
  void on(const core::SwapLeaderRecord& swap);
  void on(const core::SwapIncarnationRecord& swap);
  void write_assignments(const core::SwapIncarnationRecord& swap, std::size_t number,
                         const Store::IncarnationWritten& written);
  void on(const core::ReadAssignments& read);
  void on(const core::RemoveAssignments& removal);
  void on(const core::Persist& persist);
  void on(const core::GrantSlots& grant);
  void on(const core::AddSlots& add);
  void on(const core::NotifyCommit& notify);
  void on(const core::NotifyStored& notify);
  void on(const core::NotifyResume& notify);
  void on(const core::NotifyReplicationGroup&) {}  // simulated trainers do not copy from GPU to GPU
  void on(const core::NotifyHalt& notify);
  void on(const core::Fence& fence);
  void on(const core::RestoreReady& ready);
  void on(const core::RestoreFailed& failed);
  void on(const core::StartFetch& fetch);
  void on(const core::CancelFetch& cancel);
  void on(const core::DropSlot& drop);
  void on(const core::ReleaseSegment& release);
  void on(const core::ListStorage& list);
  void on(const core::StartWrite& write);
  void on(const core::FinalizeCheckpoint& commit);
  void on(const core::MemberChanged& changed);
  void on(const core::Notice&) {}

  World& world_;
  Machine& machine_;
  const std::uint64_t id_;
  core::Node node_;
  core::RankWatch watch_;
  core::RepeatedUpdates repeated_updates_;
  std::map<Rank, TrainerSession> sessions_;
  std::set<Rank> open_grants_;                     // ranks whose newest grant this agent has not seen used
  std::deque<std::function<void(Agent&)>> inbox_;  // inputs that came while it was frozen
  bool frozen_ = false;
  TimeMs frozen_at_ = 0;
  TimeMs wanted_tick_at_ = 0;
  int crash_after_effects_ = -1;
};

}  // namespace ckpt::sim
