// ckptengine for C++20: a thin, header-only layer over the C API (ckptengine.h). The rules there hold here too.
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
// One thread at a time uses an Engine; any thread may call its const members. Set-up calls that fail throw ckpt::Error.
// snapshot() and before_update() throw only for wrong use (CKPT_ERR_INVALID): a snapshot that fails never ends
// training. Its Result says what happened. Ignoring a Result is fine there: the health callback tells when the job is
// no longer protected.
//
// A `stream` is a cudaStream_t of the tensors' GPU. It may be left out where all tensors are in host memory.
#ifndef CKPTENGINE_ENGINE_HPP
#define CKPTENGINE_ENGINE_HPP

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ckptengine/ckptengine.h"

namespace ckpt {
inline namespace v0 {

// A call that failed: a status, and what happened, why, and what to do.
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

// Options of an engine (docs/options.md). What is not set here comes from the environment (CKPTENGINE_<KEY>), then from
// the file that the option `config` names. Values are checked when the engine is created.
class Options {
 public:
  // Nothing set in code: everything from the environment.
  [[nodiscard]] static Options from_env() { return {}; }

  // Sets `key`; the last call for a key counts.
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

  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& pairs() const { return pairs_; }

 private:
  std::vector<std::pair<std::string, std::string>> pairs_;
};

// What restore() did.
struct Restored : ckpt_restored {
  Restored() : ckpt_restored(CKPT_RESTORED_INIT) {}
  std::string message;  // what a person should know about it, "" if nothing
};

// Result of a call that can be skipped without failing. True when all went well.
class Result {
 public:
  explicit Result(ckpt_status status)
      : status_(status), message_(status == CKPT_OK ? std::string() : std::string(ckpt_last_error())) {}
  [[nodiscard]] ckpt_status status() const { return status_; }
  // What happened, why, and what to do; "" with CKPT_OK.
  [[nodiscard]] const std::string& message() const { return message_; }
  [[nodiscard]] explicit operator bool() const { return status_ == CKPT_OK; }
  // False for skipped and discarded snapshots.
  [[nodiscard]] bool is_error() const { return ckpt_is_error(status_) != 0; }

 private:
  ckpt_status status_;
  std::string message_;
};

// One snapshot, and the result of snapshot(). Small and copyable. Any thread may use it while its engine lives.
class Ticket : public Result {
 public:
  [[nodiscard]] std::int64_t iteration() const { return iteration_; }

  // How far it has come. Throws Error.
  [[nodiscard]] ckpt_stage stage() const {
    ckpt_stage stage = CKPT_STAGE_NONE;
    detail::check(ckpt_snapshot_stage(engine_, iteration_, &stage));
    return stage;
  }
  // Waits until it, or a newer one, has reached `stage`. Waiting for more than CKPT_STAGE_CAPTURING needs
  // before_update() to be called first, or by another thread. See ckpt_wait().
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

// The engine of one rank. Owns the handle; the tensors' memory stays the caller's.
class Engine {
 public:
  // Connects to the node's agent (starting one where the option `agent` is "auto") and claims the rank. Throws Error.
  explicit Engine(const Options& options) {
    std::vector<ckpt_option> list;
    for (const auto& [key, value] : options.pairs()) list.push_back({key.c_str(), value.c_str()});
    detail::check(ckpt_create(list.data(), list.size(), &engine_));
  }
  // Finishes a pending capture, as before_update() does. Waits at most the option `close_timeout_ms`.
  ~Engine() { ckpt_close(engine_); }
  Engine(Engine&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)) {}
  Engine& operator=(Engine&& other) noexcept {
    std::swap(engine_, other.engine_);
    return *this;
  }

  // Registers a contiguous, row-major tensor; `shape` in elements, {} for a single one. `data` must live until it is
  // moved or unregistered, or the engine is gone. Throws Error: CKPT_ERR_INVALID for a name that is taken, or for a
  // null with a size.
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
  // A blob of the rank's own (RNG state, data position): private, captured within snapshot().
  void register_blob(const std::string& name, void* data, std::size_t size_bytes) {
    register_tensor(name, data, CKPT_U8, {static_cast<std::int64_t>(size_bytes)}, CKPT_HOST, CKPT_SYNCHRONOUS);
  }
  // Tells a tensor's new address. Not between snapshot() and before_update(). Throws Error.
  void move_tensor(const std::string& name, void* data) {
    detail::check(ckpt_move_tensor(engine_, name.c_str(), data));
  }
  // Forgets a tensor. Not between snapshot() and before_update(). Throws Error.
  void unregister_tensor(const std::string& name) { detail::check(ckpt_unregister_tensor(engine_, name.c_str())); }

  // What is stored for this rank, as JSON (see ckpt_stored_layout). Takes part in the job's restore decision, so every
  // rank calls this or restore(). Throws Error.
  [[nodiscard]] std::string stored_layout() {
    const char* json = nullptr;
    detail::check(ckpt_stored_layout(engine_, &json));
    return json;
  }

  // Brings the newest checkpoint that every rank can get into the registered tensors, verified; not found is a fresh
  // start. Once in each incarnation, before its first snapshot. Blocks at most the option `restore_timeout_ms`. Throws
  // Error; the tensors are undefined then, but nothing stored is lost. See ckpt_restore().
  [[nodiscard]] Restored restore(void* stream = CKPT_NO_STREAM) {
    Restored restored;
    detail::check(ckpt_restore(engine_, stream, &restored));
    restored.message = restored.ckpt_restored::message;
    restored.ckpt_restored::message = nullptr;
    return restored;
  }

  // Starts the snapshot of `iteration`, after all of its updates, and returns at once. Throws Error only for wrong use
  // (CKPT_ERR_INVALID: iterations that go backwards, no restore(), no tensors). See ckpt_snapshot().
  Ticket snapshot(std::int64_t iteration, void* stream = CKPT_NO_STREAM) {
    const ckpt_status status = ckpt_snapshot(engine_, iteration, stream);
    if (status == CKPT_ERR_INVALID) throw Error(status, ckpt_last_error());
    return {engine_, iteration, status};
  }

  // Call it before the next change of registered tensors. With all of them in host memory it blocks until the last
  // snapshot is captured; with tensors on a GPU `streams` wait instead: name all that change them. CKPT_DISCARDED when
  // the capture failed; training is not affected. Throws Error only for wrong use. See ckpt_before_update().
  Result before_update(std::initializer_list<void*> streams = {}) {
    const ckpt_status status = ckpt_before_update(engine_, std::data(streams), streams.size());
    if (status == CKPT_ERR_INVALID) throw Error(status, ckpt_last_error());
    return Result(status);
  }

  // Gives up the capture that snapshot() began and before_update() has not ended: for state that was changed too early.
  void discard() { detail::check(ckpt_discard(engine_)); }

  // Around each communication of training; see ckpt_comm_begin(). Communication, below, calls both. Throw Error only
  // for wrong use.
  void comm_begin(std::uint32_t channel = 0, void* stream = CKPT_NO_STREAM) const {
    detail::check(ckpt_comm_begin(engine_, channel, stream));
  }
  void comm_end(std::uint32_t channel = 0, void* stream = CKPT_NO_STREAM) const {
    detail::check(ckpt_comm_end(engine_, channel, stream));
  }

  // Counters and last measurements.
  [[nodiscard]] ckpt_stats_t stats() const {
    ckpt_stats_t stats = CKPT_STATS_INIT;
    detail::check(ckpt_stats(engine_, &stats));
    return stats;
  }

  // Whether the job is protected, and if not, why; see ckpt_health().
  [[nodiscard]] ckpt_health_t health() const {
    ckpt_health_t health = CKPT_HEALTH_INIT;
    detail::check(ckpt_health(engine_, &health));
    return health;
  }
  // Calls `callback` when that changes, on a thread of the engine; see ckpt_on_health().
  void on_health(ckpt_health_callback callback, void* user) const {
    detail::check(ckpt_on_health(engine_, callback, user));
  }
  // Calls `callback` for each warning, on the training thread; see ckpt_on_warning().
  void on_warning(ckpt_warning_callback callback, void* user) {
    detail::check(ckpt_on_warning(engine_, callback, user));
  }

  // The C handle, still owned by this engine.
  [[nodiscard]] ckpt_engine* handle() const { return engine_; }

 private:
  ckpt_engine* engine_ = nullptr;
};

// A communication of training, from its construction to the end of its scope:
//   {
//     const ckpt::Communication scope(engine);
//     all_reduce(gradients);
//   }
// Not longer than the engine lives, which must not be moved meanwhile.
class [[nodiscard]] Communication {
 public:
  explicit Communication(const Engine& engine, std::uint32_t channel = 0, void* stream = CKPT_NO_STREAM)
      : engine_(engine), channel_(channel), channel_(channel) {
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
