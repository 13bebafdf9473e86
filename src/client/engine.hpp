// Engine is what a trainer uses: it captures, restores and reports for one rank. The C interface (ckptengine.h) calls
// it, and that file's rules apply.
//
// The training thread calls it. Other threads may call only the const functions. It throws Failure. It owns everything
// except the tensors' memory, which belongs to the caller.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "base/error.hpp"
#include "client/agent_link.hpp"
#include "client/capture.hpp"
#include "client/deferred_capture.hpp"
#include "client/early_layout.hpp"
#include "client/early_load.hpp"
#include "client/gpu_comm.hpp"
#include "client/gradient_capture.hpp"
#include "client/halt_watch.hpp"
#include "client/health_watch.hpp"
#include "client/interposed.hpp"
#include "client/layered_copy.hpp"
#include "client/reserving.hpp"
#include "client/stored.hpp"
#include "client/tensor_registry.hpp"
#include "client/tickets.hpp"
#include "client/update_gate.hpp"
#include "client/update_habit.hpp"
#include "client/warnings.hpp"
#include "device/device.hpp"
#include "gpu_replication/gpu_replication.hpp"
#include "options/options.hpp"

namespace ckpt::client {

// The result of a call that may do nothing without failing. `text` says why it did nothing, and is "" with CKPT_OK. It
// is valid until the next call.
struct Outcome {
  ckpt_status status = CKPT_OK;
  const char* text = "";
};

class Engine {
 public:
  // How long the engine waits.
  struct Limits {
    std::int64_t gpu_work_ms = 3'600'000;   // for GPU work of training; far longer than any iteration
    std::int64_t late_capture_ms = 45'000;  // for a late capture: its slot, its copy and its seal
    std::int64_t abort_ms = 10'000;         // until libckptinterpose has aborted NCCL's communicators
    // How long the training thread waits in a halt for the leader's decision and the late capture. At least HaltWatch's
    // hold_timeout_ms and late_capture_ms together. At most as long as the leader waits for captures (60 s,
    // docs/jit.md).
    std::int64_t gate_ms = 60'000;
  };
  Engine(const Options& options, std::unique_ptr<device::Device> device, const Limits& limits);
  Engine(const Options& options, std::unique_ptr<device::Device> device) : Engine(options, std::move(device), {}) {}
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void register_tensor(const ckpt_tensor& tensor);
  void move_tensor(const std::string& name, void* data);
  void unregister_tensor(const std::string& name);

  // Call it before stored_layout() and restore(). Says that this rank can take over shards that other ranks captured.
  void take_shards();
  const std::string& stored_layout();
  // Call it before restore(), which then loads nothing. Loads a shard that this rank takes over, or one of its own, and
  // verifies it. `size_bytes`: of the whole shard.
  void load_taken(const std::string& shard, void* data, std::size_t size_bytes);
  // The result's message is valid until the next restore().
  ckpt_restored restore(device::Stream stream = nullptr);

  Outcome snapshot(std::int64_t iteration, device::Stream stream = nullptr);
  Outcome before_update(std::span<const device::Stream> streams = {});
  void discard();
  // True if gradients of the coming update are of use: its result can be repeated on other nodes. add_gradient() keeps
  // one, between before_update() and the update. Returns CKPT_SKIPPED if the update cannot be repeated.
  bool wants_gradients();
  Outcome add_gradient(const ckpt_gradient_t& gradient);
  // Call this if the private tensors will not hold the coming iteration's state at the next before_update().
  void own_not_ready() { own_is_ready_ = false; }
  // The next snapshot captures the main shard, whatever the option capture_every says.
  void capture_next() { captures_next_ = true; }
  // Finishes a pending capture and waits until the last snapshot is committed, at most close_timeout_ms. If the job is
  // not protected, waits neither for a commit nor for the slot of a deferred capture, because neither is near.
  void await_last_commit();
  // True if there are GPU tensors, so that streams matter.
  bool has_gpu_tensors() const { return registry_.has_gpu_tensors(); }

  // Call these around each communication of training. They check `channel`. After the first call, libckptinterpose
  // marks no communications any more.
  void comm_begin(std::uint32_t channel) const;
  Outcome comm_end(std::uint32_t channel) const;
  // The same, for a communication on stream `on`: it begins or ends when the GPU has done the work that is on the
  // stream now.
  void comm_begin(std::uint32_t channel, device::Stream on) const;
  Outcome comm_end(std::uint32_t channel, device::Stream on) const;

  // Training thread. Call these around each time in which it waits for other ranks and its device computes nothing.
  // With a stream, any thread may call these.
  void bubble_begin(std::optional<device::Stream> on);
  Outcome bubble_end(std::optional<device::Stream> on);

  // Any thread. Waits until this rank is frozen because of a halt, and captured if it can be. Then returns CKPT_OK and
  // fills `halt`.
  Outcome wait_halt(std::int64_t timeout_ms, ckpt_halt_t& halt) const;
  // Training thread. Tells the agent that a communication has failed by itself, so that the job is halted.
  void report_trouble(const std::string& text);
  // Leaves the halted incarnation, so that restore() may be called again. If rejoin() throws, the job is still halted.
  void rejoin();

  // Between pause() and resume(), training does something other than iterations.
  void pause(std::string_view name) const { link_.comm().pause(name); }
  Outcome resume() const;

  ckpt_stage stage(std::int64_t iteration) const { return tickets_.stage(iteration); }
  Outcome wait(std::int64_t iteration, ckpt_stage stage, std::int64_t timeout_ms) const;
  ckpt_stats_t stats() const;

  ckpt_health_t health() const { return health_.now(); }
  void on_health(ckpt_health_callback callback, void* user) { health_.on_change(callback, user); }
  void on_warning(ckpt_warning_callback callback, void* user) { warnings_.on_warning(callback, user); }

 private:
  AgentLink::Look on_words(const arena::Control& control);
  bool is_hopeless() const;

  // restore.cpp
  // What follows the pieces that arrive while the engine waits for the agent's final answer.
  struct Follower {
    std::function<bool(ArrivingSlots news)> take;  // returns false if the engine need not wait any longer
    std::function<bool()> meanwhile;               // see AgentConnection::ask()
  };
  const Stored& stored(Deadline deadline);
  void ask_for_stored(nlohmann::json request, Deadline deadline, const Follower* follower = nullptr);
  void ask_for_layout();
  void check_early_layout();
  // Whether pieces are followed while they arrive. After a halt, the tensors may hold the checkpoint, so it is loaded
  // only if they prove not to.
  bool loads_early() const { return !live_ && device_->loads_leaves(); }
  nlohmann::json restore_request(Deadline deadline, bool follows_arrivals) const;
  // Whether the program cuts the tensors anew from what load_taken() loads. Then restore() loads nothing.
  bool cuts_anew() const { return has_taken_ || stored_->is_taken_over(); }
  std::optional<CorruptPiece> load(const EarlyLoad& early, device::Stream stream);
  std::optional<CorruptPiece> load_or_keep(const ShardState& shard, StoredPiece& stored, bool is_expected,
                                           const EarlyLoad& early, device::Stream stream);
  void check_not_fresh(const EarlyLoad& early) const;
  std::string join_replication(std::optional<arena::ReceiveBuffer> receive_buffer, Deadline deadline);

  // snapshot.cpp
  void check_order(std::int64_t iteration) const;
  void check_fence(const arena::Control& control);
  bool fit_slots(const RankState& state);
  bool wait_until_attached(const RankState& state);
  Outcome not_attached();
  void check_device(std::int64_t iteration) const;
  void begin_reserving();
  void wait_for_grant(Deadline deadline) const;
  bool wait_for_freed_slot();
  bool wait_for_seal(device::Stream stream);
  void wait_for_next_grant() const;
  void defer(std::int64_t iteration, Clock::time_point called_at, const RankState& state);
  bool begin_deferred();
  std::optional<arena::Grant> unused_grant();
  bool give_up_deferred(ckpt_status why);
  bool await_deferred(Deadline deadline);
  void not_taken(std::int64_t iteration, ckpt_status why);
  void mark_iteration(Clock::time_point now, device::Stream stream) const;
  void mark_update() const;
  std::optional<GpuBubbles> gpu_bubbles() const;
  void warn_of_habit();
  void rest(std::int64_t iteration, bool is_taken);
  bool follow_session(Deadline deadline);
  bool loses_replication(const AgentSession& next) const;
  void discard_forgotten();
  void pass_on_news();
  bool is_due(std::int64_t iteration) const;
  Outcome end_capture(std::span<const device::Stream> streams);
  Outcome try_snapshot(std::int64_t iteration, Clock::time_point called_at, device::Stream stream);
  // True if a capture was begun or deferred, and not released.
  bool open_capture() const { return !sealing_.under_way() && (deferred_.is_open() || capture_.active()); }
  bool release(std::span<const device::Stream> streams, std::int64_t timeout_ms);
  void sealed(bool whole);
  void cancel_capture();
  void check_no_capture(const char* call) const;

  // gradients.cpp
  void warn_not_repeated(const std::string& why);
  void begin_update();
  const device::Plan* record_of(std::int64_t iteration, const RankState& state);

  // own_state.cpp
  static constexpr auto not_due =
      "only the private shard of this iteration is kept, as the option capture_every says; training is not affected";
  Outcome snapshot_own(std::int64_t iteration, Clock::time_point called_at, const RankState& state,
                       device::Stream stream);
  Outcome snapshot_own_on_gpu(CheckpointId checkpoint, const RankState& state, device::Stream stream);
  bool keeps_own() const;
  bool keep_own(CheckpointId checkpoint, const RankState& state, device::Stream stream);
  void prepare_own();

  // gpu_gate.cpp
  bool waits_for_gpu() const;
  void await_gpu(const char* call, std::span<const device::Stream> streams);
  std::shared_ptr<GpuComm> gpu_comm() const;
  void use_gpu_comm(std::shared_ptr<GpuComm> comm);

  // For libckptinterpose.
  ckpt_interposed_engine as_interposed();
  void mark_begin(std::uint32_t channel, device::Stream on) const;
  Outcome mark_end(std::uint32_t channel, device::Stream on) const;

  // late_capture.cpp
  bool pass_gate();
  void settle_own();
  void take_back_own();
  std::optional<arena::Grant> await_grant(Deadline deadline, bool is_closing);
  void leave_rest();
  std::string halt_text() const;
  void change_registered(const char* call, const std::function<void()>& change);
  Outcome halted();
  bool has_late_captures() const { return options_.on_suspicion == OnSuspicion::halt || options_.capture_every > 1; }
  bool is_captured(std::int64_t iteration) const;
  bool capture_late(Deadline slot_deadline, bool is_closing);
  bool await_slot(Deadline deadline, bool is_closing);
  bool capture_at_close();

  // rejoin.cpp
  void await_end_of_halt() const;
  CheckpointId live_checkpoint() const;
  void forget_incarnation();

  const Options options_;
  const Limits limits_;
  Warnings warnings_;
  LayeredCopy layered_;  // before the device, whose threads ask it
  std::unique_ptr<device::Device> device_;
  TensorRegistry registry_;
  Tickets tickets_;
  Capture capture_;
  GradientCapture gradients_;
  bool has_warned_not_repeated_ = false;
  DeferredCapture deferred_;  // while it waits for its slot, only its try_begin() uses capture_
  // The capture that is being sealed.
  struct Released {
    std::int64_t iteration;
    std::uint64_t bytes;
    Clock::time_point called_at;
    std::span<const std::byte> main;  // the main piece, for GPU replication; `slots` keeps it mapped
    std::shared_ptr<Slots> slots;
  } released_{};
  std::atomic<std::int64_t> newest_sealed_{-1};  // in this incarnation
  Sealing sealing_;
  // Set between rejoin() and restore(): the checkpoint that the tensors should hold. It is CheckpointId() if they hold
  // no checkpoint.
  std::optional<CheckpointId> live_;
  bool is_registered_anew_ = false;  // a registration has changed since rejoin(), or since the engine was made
  bool holds_a_part_ = false;        // a restore that failed has loaded a part of a checkpoint
  std::optional<Stored> stored_;     // between the agent's answer and restore()
  // Between stored_layout() and restore(), if stored_layout() did not wait until all was here.
  std::optional<EarlyLayout> early_layout_;
  bool takes_shards_ = false;      // see take_shards()
  bool has_taken_ = false;         // load_taken() has loaded a shard
  std::uint64_t taken_bytes_ = 0;  // that load_taken() has loaded
  std::string stored_layout_;
  std::string restored_message_;
  std::atomic<std::uint64_t> incarnation_{0};    // 0: not restored yet
  std::atomic<std::uint64_t> restored_word_{0};  // the checkpoint that was restored, as CheckpointId::word()
  std::int64_t last_iteration_ = -1;
  UpdateGate gate_;
  UpdateHabit habit_;
  bool is_replicated_ = false;  // in this incarnation, ranks on two nodes or more have each main shard
  bool captures_next_ = false;
  bool own_is_ready_ = true;     // see own_not_ready()
  bool is_consecutive_ = false;  // the last two calls of snapshot() had consecutive iterations
  // Why the tensors were not captured late. While the gate is frozen, only the thread that froze it uses this text.
  // Once the gate is over, any thread may read it under the mutex. rejoin() opens the gate under the same mutex.
  std::string late_failure_;
  mutable std::mutex halt_mutex_;
  Clock::time_point snapshot_called_at_;
  double snapshot_stall_ms_ = 0;
  std::string failure_;  // an Outcome's `text` points to this
  std::atomic<std::uint64_t> staging_bytes_{0};
  std::uint32_t session_number_ = 0;
  CheckpointId granted_after_;              // newest commit for whose slot a snapshot has waited: once for each
  std::optional<Failure> reserve_failure_;  // of the last reservation that has ended
  Clock::time_point reserve_again_at_;
  std::unique_ptr<GpuReplication> gpu_replication_;  // made once it is needed; lives until the watcher has ended
  std::atomic<GpuReplication*> watched_replication_{nullptr};  // the same, for the watcher
  std::shared_ptr<arena::Control> replication_control_;        // of the session in which replication began
  AgentLink link_;                                             // after the tickets, which its watcher uses
  HealthWatch health_;                                         // after the link, which it asks
  mutable std::mutex gpu_comm_mutex_;
  std::shared_ptr<GpuComm> gpu_comm_;  // null: communications are marked when the host calls
  Reserving reserving_;                // after the link, which it asks
  HaltWatch halt_watch_;               // after all that its capture uses
  mutable Interposed interposed_;      // last: it calls from other threads
};

}  // namespace ckpt::client
