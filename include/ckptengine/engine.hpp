// The C++20 API of ckptengine: a thin, header-only layer over the C API. The rules of ckptengine.h hold here too.
//
//   ckpt::Engine engine(ckpt::Options::from_env());
//   engine.register_tensor("weight", weight.data(), CKPT_F32, {rows, columns});
//   for (auto k = engine.restore().next_iteration; k < iterations; ++k) {
//     forward_backward();
//     engine.before_update();
//     optimizer_step();
//     engine.snapshot(k);
//   }
//
// Threads: one thread at a time may call members that are not const. Any thread may call const members at any time.
//
// Errors: set-up calls that fail throw ckpt::Error. snapshot() and before_update() throw only for wrong use
// (CKPT_ERR_INVALID) and in a halted job (CKPT_ERR_HALTED), so a snapshot that fails never ends training. Both return a
// Result, which says what happened. You may ignore it: the health callback tells you when the job is no longer
// protected.
//
// Streams: a `stream` is a cudaStream_t of the tensors' GPU. Leave it out if all tensors are in host memory.
#ifndef CKPTENGINE_ENGINE_HPP
#define CKPTENGINE_ENGINE_HPP

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ckptengine/ckptengine.h"

namespace ckpt {
inline namespace v0 {

// Thrown if a call failed. status() is the kind of failure. what() says what happened, why, and what to do.
class Error : public std::runtime_error {
 public:
  Error(ckpt_status status, const std::string& sentence) : std::runtime_error(sentence), status_(status) {}
  ckpt_status status() const noexcept { return status_; }

 private:
  ckpt_status status_;
};

namespace detail {
inline void check(ckpt_status status) {
  if (status != CKPT_OK) throw Error(status, ckpt_last_error());
}
}  // namespace detail

// Options for a new Engine (docs/options.md). If an option is not set here, it comes from the environment
// (CKPTENGINE_<KEY>), then from the file that the option `config` names, then from its default. Creating the engine
// checks the values.
class Options {
 public:
  // Sets nothing in code: all options come from the environment, the file and the defaults.
  [[nodiscard]] static Options from_env() { return {}; }

  // Sets `key` to `value`. The last call for a key wins.
  Options& set(const std::string& key, const std::string& value) {
    for (auto& pair : pairs_) {
      if (pair.first == key) {
        pair.second = value;
        return *this;
      }
    }
    pairs_.emplace_back(key, value);
    return *this;
  }
  Options& set(const std::string& key, std::int64_t value) { return set(key, std::to_string(value)); }

  // The options set so far, as (key, value).
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& pairs() const { return pairs_; }

 private:
  std::vector<std::pair<std::string, std::string>> pairs_;
};

// What restore() did: ckpt_restored, with a copy of the message. So the message stays valid.
struct Restored : ckpt_restored {
  Restored() : ckpt_restored(CKPT_RESTORED_INIT) {}
  std::string message;  // what a person should know about this restore, or ""
};

// The result of a call whose failure does not harm training. Converts to true for CKPT_OK only.
class Result {
 public:
  explicit Result(ckpt_status status)
      : status_(status), message_(status == CKPT_OK ? std::string() : std::string(ckpt_last_error())) {}
  [[nodiscard]] ckpt_status status() const { return status_; }
  // What happened, why, and what to do. "" for CKPT_OK.
  [[nodiscard]] const std::string& message() const { return message_; }
  [[nodiscard]] explicit operator bool() const { return status_ == CKPT_OK; }
  // False for CKPT_OK, and for snapshots that were skipped or discarded.
  [[nodiscard]] bool is_error() const { return ckpt_is_error(status_) != 0; }

 private:
  ckpt_status status_;
  std::string message_;
};

// What snapshot() returns: its result, and a handle to follow the snapshot. It can be copied. Any thread may use it,
// but only while its engine exists and is not moved.
class Ticket : public Result {
 public:
  [[nodiscard]] std::int64_t iteration() const { return iteration_; }

  // How far the snapshot has come. Throws Error.
  [[nodiscard]] ckpt_stage stage() const {
    ckpt_stage stage = CKPT_STAGE_NONE;
    detail::check(ckpt_snapshot_stage(engine_, iteration_, &stage));
    return stage;
  }
  // Waits until this snapshot, or a newer one, has reached `stage`. After `timeout` the result's status is
  // CKPT_ERR_TIMEOUT. Stages after CKPT_STAGE_CAPTURING need before_update(): call it first, or on another thread. See
  // ckpt_wait().
  [[nodiscard]] Result wait(ckpt_stage stage, std::chrono::milliseconds timeout) const {
    return Result(ckpt_wait(engine_, iteration_, stage, timeout.count()));
  }

 private:
  friend class Engine;
  Ticket(ckpt_engine* engine, std::int64_t iteration, ckpt_status status)
      : Result(status), engine_(engine), iteration_(iteration) {}

  ckpt_engine* engine_;
  std::int64_t iteration_;
};

// The engine of one rank, which takes snapshots and restores them. The caller owns the tensors' memory.
class Engine {
 public:
  // Connects to the node's agent and claims the rank. If no agent runs and the option `agent` is "auto", starts one.
  // Throws Error. See ckpt_create().
  explicit Engine(const Options& options) {
    std::vector<ckpt_option> list;
    for (const auto& [key, value] : options.pairs()) list.push_back({key.c_str(), value.c_str()});
    detail::check(ckpt_create(list.data(), list.size(), &engine_));
  }
  // Finishes a pending capture as before_update() does, and waits for its commit. See ckpt_close() for how long.
  ~Engine() { ckpt_close(engine_); }
  Engine(Engine&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)) {}
  Engine& operator=(Engine&& other) noexcept {
    std::swap(engine_, other.engine_);
    return *this;
  }

  // Registers a contiguous, row-major tensor. `shape` is in elements. {} means a single element. Keep `data` until the
  // tensor is moved or unregistered, or the engine is gone. Throws Error. CKPT_ERR_INVALID: the name is taken, or
  // `data` is null and the tensor is not empty.
  void register_tensor(const std::string& name, void* data, ckpt_dtype dtype, std::span<const std::int64_t> shape,
                       ckpt_memory memory = CKPT_HOST, ckpt_capture capture = CKPT_OVERLAPPED) {
    ckpt_tensor tensor = CKPT_TENSOR_INIT;
    tensor.name = name.c_str();
    tensor.data = data;
    tensor.shape = shape.data();
    tensor.ndim = static_cast<std::int32_t>(shape.size());
    tensor.dtype = dtype;
    tensor.memory = memory;
    tensor.capture = capture;
    detail::check(ckpt_register_tensor(engine_, &tensor));
  }
  void register_tensor(const std::string& name, void* data, ckpt_dtype dtype, std::initializer_list<std::int64_t> shape,
                       ckpt_memory memory = CKPT_HOST, ckpt_capture capture = CKPT_OVERLAPPED) {
    register_tensor(name, data, dtype, std::span(shape.begin(), shape.size()), memory, capture);
  }
  // Registers bytes in host memory for the private shard, e.g. RNG state or the position in the data. They are copied
  // before snapshot() returns. Throws Error.
  void register_blob(const std::string& name, void* data, std::size_t size_bytes) {
    register_tensor(name, data, CKPT_U8, {static_cast<std::int64_t>(size_bytes)}, CKPT_HOST, CKPT_SYNCHRONOUS);
  }
  // Tells the engine a tensor's new address. Throws Error, for example between snapshot() and before_update().
  void move_tensor(const std::string& name, void* data) {
    detail::check(ckpt_move_tensor(engine_, name.c_str(), data));
  }
  // Forgets a tensor. Throws Error, for example between snapshot() and before_update().
  void unregister_tensor(const std::string& name) { detail::check(ckpt_unregister_tensor(engine_, name.c_str())); }

  // Says that this rank can take over shards that another number of ranks captured. Call it before stored_layout().
  // Throws Error. See ckpt_take_shards().
  void take_shards() { detail::check(ckpt_take_shards(engine_)); }
  // Copies a shard that this rank takes over to host memory, and verifies it. Call it between stored_layout() and
  // restore(). `size_bytes`: the shard's length. Throws Error. See ckpt_load_taken().
  void load_taken(const std::string& shard, void* data, std::size_t size_bytes) {
    detail::check(ckpt_load_taken(engine_, shard.c_str(), data, size_bytes));
  }

  // Returns the layout of what is stored for this rank, as JSON. The call takes part in the job's restore decision, so
  // every rank must call this function or restore(). Throws Error. See ckpt_stored_layout().
  [[nodiscard]] std::string stored_layout() {
    const char* json = nullptr;
    detail::check(ckpt_stored_layout(engine_, &json));
    return json;
  }

  // Restores the newest checkpoint that every rank can get into the registered tensors, and verifies it. `found` is 0
  // for a fresh start. Call it once in each incarnation, before the first snapshot. Blocks for about
  // `restore_timeout_ms` (an option) at most. Throws Error: the contents of the tensors are undefined then, but nothing
  // stored is lost. See ckpt_restore().
  [[nodiscard]] Restored restore(void* stream = CKPT_NO_STREAM) {
    Restored restored;
    detail::check(ckpt_restore(engine_, stream, &restored));
    restored.message = restored.ckpt_restored::message;
    restored.ckpt_restored::message = nullptr;
    return restored;
  }

  // Starts the snapshot of `iteration` and returns at once. Call it after all updates of that iteration. Throws Error
  // for wrong use (CKPT_ERR_INVALID): iterations go backwards, restore() was not called, or there are no tensors.
  // Throws Error with CKPT_ERR_HALTED if the job was halted. See ckpt_snapshot().
  Ticket snapshot(std::int64_t iteration, void* stream = CKPT_NO_STREAM) {
    const ckpt_status status = ckpt_snapshot(engine_, iteration, stream);
    if (status == CKPT_ERR_INVALID || status == CKPT_ERR_HALTED) throw Error(status, ckpt_last_error());
    return {engine_, iteration, status};
  }

  // Finishes the pending capture. Call it before registered tensors change again. If all tensors are in host memory, it
  // blocks until they are captured. Otherwise `streams` wait instead, on the GPU: name every stream that changes the
  // tensors. CKPT_DISCARDED: the capture failed. CKPT_SKIPPED: no slot became free. Neither affects training. Throws
  // Error for wrong use, and with CKPT_ERR_HALTED if the job was halted: then do not change the tensors. See
  // ckpt_before_update().
  Result before_update(std::initializer_list<void*> streams = {}) {
    const ckpt_status status = ckpt_before_update(engine_, std::data(streams), streams.size());
    if (status == CKPT_ERR_INVALID || status == CKPT_ERR_HALTED) throw Error(status, ckpt_last_error());
    return Result(status);
  }

  // With the option protection=recompute(n): whether gradients of the coming update are of use, and one of them. Call
  // the second for each parameter, between before_update() and the update. CKPT_SKIPPED: the update cannot be repeated
  // on other nodes. Throws Error for wrong use. See ckpt_wants_gradients() and ckpt_add_gradient().
  bool wants_gradients() {
    int32_t wants = 0;
    detail::check(ckpt_wants_gradients(engine_, &wants));
    return wants != 0;
  }
  Result add_gradient(const ckpt_gradient_t& gradient) {
    const ckpt_status status = ckpt_add_gradient(engine_, &gradient);
    if (ckpt_is_error(status) != 0) throw Error(status, ckpt_last_error());
    return Result(status);
  }

  // Discards the pending capture. Call it if tensors changed before before_update() finished their capture. Does
  // nothing if no capture is pending. Throws Error.
  void discard() { detail::check(ckpt_discard(engine_)); }

  // Call this before before_update() if the CKPT_SYNCHRONOUS tensors do not hold the coming iteration's state yet. Then
  // that before_update() does not copy them. It copies them only with on_suspicion=halt. Throws Error. See
  // ckpt_own_not_ready().
  void own_not_ready() { detail::check(ckpt_own_not_ready(engine_)); }

  // Lets the next snapshot() capture the whole state, whatever the option capture_every says. Call it on all ranks
  // before the same iteration. Throws Error.
  void capture_next() { detail::check(ckpt_capture_next(engine_)); }

  // Waits until the job is halted and this rank is frozen. Returns nothing if `timeout` passes first. Any thread may
  // call it. Throws Error. See ckpt_wait_halt().
  [[nodiscard]] std::optional<ckpt_halt_t> wait_halt(std::chrono::milliseconds timeout) const {
    ckpt_halt_t halt = CKPT_HALT_INIT;
    const ckpt_status status = ckpt_wait_halt(engine_, timeout.count(), &halt);
    if (status == CKPT_ERR_TIMEOUT) return std::nullopt;
    detail::check(status);
    return halt;
  }
  // Says that a communication of this rank has failed although no halt interrupted it, so that the job is halted at
  // once. Throws Error. See ckpt_report_trouble().
  void report_trouble(const std::string& text) { detail::check(ckpt_report_trouble(engine_, text.c_str())); }
  // Joins the next incarnation of the halted job, in the same process. Then call restore(). Throws Error: the job is
  // still halted then. See ckpt_rejoin().
  void rejoin() { detail::check(ckpt_rejoin(engine_)); }

  // Mark the begin and end of each communication of training. The class Communication, below, calls both. They throw
  // Error only for wrong use. See ckpt_comm_begin().
  void comm_begin(std::uint32_t channel = 0, void* stream = CKPT_NO_STREAM) const {
    detail::check(ckpt_comm_begin(engine_, channel, stream));
  }
  void comm_end(std::uint32_t channel = 0, void* stream = CKPT_NO_STREAM) const {
    detail::check(ckpt_comm_end(engine_, channel, stream));
  }

  // Mark the begin and end of a time in which training waits for other ranks and computes nothing: the training thread,
  // or a stream of a GPU. They throw Error only for wrong use. See ckpt_bubble_begin().
  void bubble_begin(void* stream = CKPT_NO_STREAM) { detail::check(ckpt_bubble_begin(engine_, stream)); }
  void bubble_end(void* stream = CKPT_NO_STREAM) { detail::check(ckpt_bubble_end(engine_, stream)); }

  // Between pause() and resume(), training does something other than iterations, such as an evaluation. The class
  // Pause, below, calls both. They throw Error only for wrong use. See ckpt_pause().
  void pause(const char* name) { detail::check(ckpt_pause(engine_, name)); }
  void resume() { detail::check(ckpt_resume(engine_)); }

  // Counters and latest measurements. Throws Error.
  [[nodiscard]] ckpt_stats_t stats() const {
    ckpt_stats_t stats = CKPT_STATS_INIT;
    detail::check(ckpt_stats(engine_, &stats));
    return stats;
  }

  // Whether the job is protected, and if not, why. Throws Error. See ckpt_health().
  [[nodiscard]] ckpt_health_t health() const {
    ckpt_health_t health = CKPT_HEALTH_INIT;
    detail::check(ckpt_health(engine_, &health));
    return health;
  }
  // Calls `callback` when the verdict changes, on a thread of the engine. Throws Error. See ckpt_on_health().
  void on_health(ckpt_health_callback callback, void* user) const {
    detail::check(ckpt_on_health(engine_, callback, user));
  }
  // Calls `callback` for each warning, on the training thread. Throws Error. See ckpt_on_warning().
  void on_warning(ckpt_warning_callback callback, void* user) {
    detail::check(ckpt_on_warning(engine_, callback, user));
  }

  // The C handle. This engine still owns it.
  [[nodiscard]] ckpt_engine* handle() const { return engine_; }

 private:
  ckpt_engine* engine_ = nullptr;
};

// A pause of training, from construction to the end of the scope:
//   {
//     const ckpt::Pause pause(engine, "eval");
//     evaluate();
//   }
// The engine must outlive it and must not be moved meanwhile.
class [[nodiscard]] Pause {
 public:
  Pause(Engine& engine, const char* name) : engine_(engine) { engine.pause(name); }
  ~Pause() { ckpt_resume(engine_.handle()); }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  Engine& engine_;
};

// Marks a communication of training, from construction to the end of the scope:
//   {
//     const ckpt::Communication scope(engine);
//     all_reduce(gradients);
//   }
// The engine must outlive it and must not be moved meanwhile.
class [[nodiscard]] Communication {
 public:
  explicit Communication(const Engine& engine, std::uint32_t channel = 0, void* stream = CKPT_NO_STREAM)
      : engine_(engine), channel_(channel), stream_(stream) {
    engine.comm_begin(channel, stream);
  }
  ~Communication() { ckpt_comm_end(engine_.handle(), channel_, stream_); }
  Communication(const Communication&) = delete;
  Communication& operator=(const Communication&) = delete;

 private:
  const Engine& engine_;
  std::uint32_t channel_;
  void* stream_;
};

}  // namespace v0
}  // namespace ckpt

#endif  // CKPTENGINE_ENGINE_HPP
