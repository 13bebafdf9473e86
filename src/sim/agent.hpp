// A simulated ckptd: drives one protocol::Node as the real one does, and can crash between any two effects, freeze and
// wake. It reaches its trainers through the words in the arena and a "socket" (the calls below), its peers through the
// network. It lives in a Machine, which outlives it. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "protocol/node.hpp"
#include "sim/event_queue.hpp"
#include "sim/memory.hpp"
#include "sim/store.hpp"

namespace ckpt::sim {

struct Machine;
class Trainer;
class World;

class Agent {
 public:
  // Re-attaches to the machine's arena.
  Agent(World& world, Machine& machine, std::uint64_t id);

  void start();

  std::uint64_t id() const { return id_; }
  const protocol::Node& node() const { return node_; }
  bool is_frozen() const { return frozen_; }
  void freeze();
  void wake();
  void crash_in_next_effects(int after) { crash_after_effects_ = after; }

  // Runs `input` after the delay if this run of the agent still lasts then; while it is frozen, on waking.
  void later(TimeMs delay_ms, std::function<void(Agent&)> input);
  void receive(protocol::Event event);  // now, or on waking

  // What trainers ask over the socket.
  void greet(std::uint64_t instance, TimeMs waited_ms);
  void ask_restore(std::uint64_t instance);
  void end_restore(std::uint64_t instance, const std::vector<SlotRef>& corrupt);  // none: its tensors are whole
  void reserve(std::uint64_t instance);
  void read_words(Rank rank);                 // the trainer rang
  void trainer_died(std::uint64_t instance);  // its pidfd says so

  // What transfers tell.
  void fetch_ended(std::uint64_t fetch, const SlotRef& slot, protocol::FetchResult result, const PieceInfo& made);
  void handle(const protocol::Event& event);
  void verify(const SlotRef& slot);  // a reader found its bytes wrong: look for oneself
  void unpin(const SlotRef& slot);

 private:
  // A trainer that has said hello, as the driver sees it.
  struct TrainerSession {
    std::uint64_t instance = 0;
    bool waits_for_restore = false;
    std::vector<SlotRef> reads;  // pinned while it restores
    std::int64_t notified_attempted = -1;
    std::int64_t notified_capturing = -1;
  };

  static Arena& swept(World& world, Arena& arena);
  static protocol::Recovered attach(Arena& arena, TimeMs now);
  static protocol::Config configure(const World& world, const Machine& machine);

  void take(std::function<void(Agent&)> input);
  void tick();
  void tick_when_wanted();
  void poll();
  TrainerSession* session_of(std::uint64_t instance);
  void end_session(Rank rank);
  std::function<void(const protocol::Event&)> store_answer();
  void release_if_idle(const SlotRef& ref);

  void carry_out(const protocol::Effect& effect);
  bool fails(const protocol::Effect& effect);
  void on(const protocol::Send& send);
  void on(const protocol::SwapLeaderRecord& swap);
  void on(const protocol::SwapIncarnationRecord& swap);
  void write_assignments(const protocol::SwapIncarnationRecord& swap, std::size_t number,
                         const Store::IncarnationWritten& written);
  void on(const protocol::ReadAssignments& read);
  void on(const protocol::RemoveAssignments& removal);
  void on(const protocol::Persist& persist);
  void on(const protocol::GrantSlots& grant);
  void on(const protocol::NotifyCommit& notify);
  void on(const protocol::NotifyStored& notify);
  void on(const protocol::NotifyResume& notify);
  void on(const protocol::NotifyReplicationGroup&) {}  // a matter between trainers
  void on(const protocol::Fence& fence);
  void on(const protocol::RestoreReady& ready);
  void on(const protocol::RestoreFailed& failed);
  void on(const protocol::StartFetch& fetch);
  void on(const protocol::CancelFetch& cancel);
  void on(const protocol::DropSlot& drop);
  void on(const protocol::ReleaseSegment& release);
  void on(const protocol::ListStorage& list);
  void on(const protocol::StartWrite& write);
  void on(const protocol::FinalizeCheckpoint& commit);
  void on(const protocol::MemberChanged& changed);
  void on(const protocol::Notice&) {}

  World& world_;
  Machine& machine_;
  const std::uint64_t id_;
  protocol::Node node_;
  std::map<Rank, TrainerSession> sessions_;
  std::set<Rank> open_grants_;                     // given and not seen used
  std::deque<std::function<void(Agent&)>> inbox_;  // while frozen
  bool frozen_ = false;
  TimeMs frozen_at_ = 0;
  TimeMs wanted_tick_at_ = 0;
  int crash_after_effects_ = -1;
};

}  // namespace ckpt::sim
