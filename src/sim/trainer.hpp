// Trainer is a simulated training process with libckptengine in it. It trains in step with the other ranks, offers a
// snapshot after every update, and writes to the slots of its grant. It can die at any moment, and freeze and wake. Its
// state is one number for each shard, which every update changes. After each start of the job, updates give other
// numbers, even from the same checkpoint. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "core/events.hpp"
#include "sim/event_queue.hpp"
#include "sim/memory.hpp"

namespace ckpt::sim {

class World;
struct Machine;

enum class Stage : std::uint8_t { connecting, waiting, reading, training };

// What a process that rejoins takes along into the next incarnation.
struct Kept {
  CheckpointId live;  // the checkpoint that its tensors hold; none: they hold no checkpoint
  std::uint64_t main = 0;
  std::uint64_t private_ = 0;
  bool is_corrupted = false;  // since it last restored
};

class Trainer {
 public:
  // A process that rejoins begins as another trainer, with what it has `kept`.
  Trainer(World& world, std::uint64_t instance, int launch, Rank rank, Rank world_size, NodeId node,
          const std::optional<Kept>& kept);

  const std::uint64_t instance;
  const int launch;  // the launch that it belongs to (launcher.hpp)
  const Rank rank;
  const Rank world_size;
  const std::string main_shard;
  const NodeId node;

  void start();
  void freeze();
  // Stops the trainer together with its whole node, so that nobody can see it.
  void suspend();
  void spin();  // it computes and gets nowhere, until it wakes
  void wake();
  void die();                                              // dies at once; the world tells the agent and the launcher
  void forget_next_before_update() { forgetful_ = true; }  // the next update is without before_update()
  void pause_next(TimeMs for_ms) { pauses_for_ms_ = for_ms; }  // after this iteration
  void slow_down(int factor) { slowness_ = factor; }
  void die_in_next_update() { dies_in_update_ = true; }
  void die_in_restore() { dies_in_restore_ = true; }
  void never_rejoin() { never_rejoins_ = true; }
  void communication_failed();                             // as when a peer closes its connection
  void hear_of_halt();                                     // the agent has written to the control page
  void corrupt_state();                                    // from now on its state is wrong, and nobody notices
  void disturb_updates(int count) { disturbed_ = count; }  // the next ones: something else changes its tensors, too

  bool is_alive() const { return alive_; }
  bool is_closed() const { return is_closed_; }  // it has closed its engine, and then ended or rejoined
  bool has_left() const { return has_left_; }    // it has not ended: another trainer goes on with its process
  bool has_rejoined() const { return kept_.has_value(); }
  TimeMs obeys_since() const { return obeys_since_; }  // since when it has trained without being stopped
  bool is_frozen() const { return halt_ == Halt::frozen || halt_ == Halt::suspended; }
  bool is_halted() const { return halt_ != Halt::none; }
  char process_state() const;  // as in /proc/PID/stat
  bool is_capturing() const { return capture_ != 0; }
  bool is_fenced();
  Stage stage() const { return stage_; }
  bool has_asked() const { return has_asked_; }
  // The incarnation that it says in its hello. 0 until it has restored.
  std::uint64_t incarnation() const { return stage_ == Stage::training ? incarnation_ : 0; }
  std::int64_t iteration() const { return iteration_; }
  std::uint64_t main_state() const { return main_; }
  std::uint64_t private_state() const { return private_; }
  bool has_heard_of_a_halt();
  bool is_frozen_for_good() const { return gate_ == Gate::over; }
  bool captures_late() const { return gate_ == Gate::frozen; }
  const core::Share& share() const { return share_; }

  // The agent calls these, to answer.
  void attached(std::uint64_t agent_id);
  void restore_ready(const core::RestoreReady& ready);
  void restore_failed(const core::RestoreFailed& failed);
  void claimed_by_another();
  void agent_died();

  // All ranks have finished the gradients of iteration k.
  void update(std::int64_t k);
  // An exchange of iteration k has ended.
  void communicated(std::int64_t k, std::uint32_t number);

 private:
  enum class Halt : std::uint8_t { none, frozen, suspended, spinning };
  void later(TimeMs delay_ms, std::function<void()> action);
  void connect();
  void read(const core::RestoreReady& ready, std::uint64_t agent_id);
  void compute();
  void compute_part(std::int64_t k, std::uint32_t number, TimeMs takes_ms);
  void mark(schedule::Mark::Kind kind);
  void begin_update(std::int64_t k);
  void finish_update(std::int64_t k);
  void snapshot(std::int64_t k);
  void start_capture(Control& words, std::int64_t k);
  void seal_next(std::uint64_t capture, std::size_t slot);
  void use_grant(std::uint64_t capture);
  void seal(const SlotRef& ref, std::uint64_t bytes, std::int64_t k);
  bool keep_own(Control& words, std::int64_t k);
  void prepare_own(std::int64_t k);
  void empty(const SlotRef& ref);
  void seal_small(Control& words, std::int64_t k);
  bool is_due(std::int64_t k) const;

  // trainer_halts.cpp
  enum class Gate : std::uint8_t { updating, resting, held, frozen, over };
  void watch_later(TimeMs delay_ms, std::function<void()> action);
  bool passes_gate(std::int64_t k);
  void leave_gate();
  void set_paused(bool is_paused);
  void rest();
  void look_for_halt();
  void answer(core::Freeze state);
  void freeze_for_good();
  void end_freeze(bool is_captured);

  void heed(const std::string& refusal);
  void rejoin_soon();
  void rejoin();
  void quit(const char* why);
  void close(const char* why);
  void ring();
  Control* control();
  Machine& machine();

  World& world_;
  bool alive_ = true;
  bool is_closed_ = false;
  bool has_left_ = false;
  std::optional<Kept> kept_;
  CheckpointId restored_;
  bool is_corrupted_ = false;
  TimeMs obeys_since_ = 0;
  Halt halt_ = Halt::none;
  TimeMs pauses_for_ms_ = 0;
  int slowness_ = 1;
  TimeMs part_takes_ms_ = 0;  // of an iteration, between communications
  bool has_asked_ = false;
  bool forgetful_ = false;
  Stage stage_ = Stage::connecting;
  std::deque<std::function<void()>> postponed_;        // what it does when it wakes
  std::deque<std::function<void()>> postponed_looks_;  // what its watch's thread does when it wakes
  std::uint64_t agent_id_ = 0;                         // the agent that it is connected to; 0: none

  std::uint64_t incarnation_ = 0;
  std::uint64_t main_ = 0;
  std::uint64_t private_ = 0;
  std::int64_t iteration_ = -1;
  core::Share share_;
  bool reserving_ = false;

  std::uint64_t capture_ = 0;  // number of the running capture; 0: none
  std::uint64_t captures_ = 0;
  std::uint64_t captured_main_ = 0;
  std::uint64_t captured_private_ = 0;
  std::int64_t captured_iteration_ = -1;
  std::optional<CheckpointId> base_;             // what its tensors held before the update, if that was captured
  std::optional<UpdateRecord> record_;           // of the last update
  std::optional<UpdateRecord> captured_record_;  // of the running capture
  int disturbed_ = 0;
  TimeMs capture_ends_at_ = 0;
  std::int64_t newest_captured_ = -1;

  Gate gate_ = Gate::updating;
  std::int64_t hold_from_ = INT64_MAX;
  std::optional<TimeMs> give_up_at_;  // when it no longer waits for the halt's decision; none: it has heard of no halt
  std::optional<std::int64_t> waits_to_update_;  // the iteration for which it waits in before_update()
  std::optional<SlotRef> own_slot_;              // the slot of its newest private shard
  std::int64_t own_iteration_ = -1;
  std::optional<SlotRef> capture_own_;  // the slot of the running capture's private shard
  bool may_follow_ = false;  // the private shard of this iteration is sealed, and the main shard may follow late
  bool is_late_ = false;     // the running capture is a late one
  bool is_captured_late_ = false;
  bool dies_in_update_ = false;
  bool dies_in_restore_ = false;
  bool never_rejoins_ = false;
};

}  // namespace ckpt::sim
