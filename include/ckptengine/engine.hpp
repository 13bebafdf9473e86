// ckptengine for C++20: a thin, header-only layer over the C ABI (ckptengine.h), whose rules hold here too.
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
// An Engine is used by one thread at a time, except its const members, which any thread may call. Failures of set-up
// calls throw ckpt::Error. snapshot() and before_update() throw only for wrong use (CKPT_ERR_INVALID): a snapshot that
// fails never ends training, it says so in its Ticket.
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

// A call that failed: a status, and one sentence that says what, where and what to do next.
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

// Options of an engine (docs/options.md). What is not set here comes from the environment (CKPT_<KEY>), then from the
// file that the option `config` names. Values are checked when the engine is created.
class Options {
 public:
  // Nothing set in code: everything from the environment.
  static Options from_env() { return {}; }

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

  const std::vector<std::pair<std::string, std::string>>& pairs() const { return pairs_; }

 private:
  std::vector<std::pair<std::string, std::string>> pairs_;
};

// What restore() did: ckpt_restored, and a sentence about a state that is behind, or of unknown standing ("" if none).
struct Restored : ckpt_restored {
  std::string message;
};

// One snapshot. Small, copyable; to be used while its engine lives, from any thread.
class Ticket {
 public:
  std::int64_t iteration() const { return iteration_; }
  // CKPT_OK when the snapshot was taken; else why not, CKPT_ERR_SKIPPED for one. Training is not affected either way.
  ckpt_status status() const { return status_; }
  explicit operator bool() const { return status_ == CKPT_OK; }
  // One sentence about it; with CKPT_OK, about the snapshot before this one if that was discarded ("" otherwise).
  const std::string& message() const { return message_; }

  // How far it has come.
  ckpt_stage stage() const {
    ckpt_stage stage = CKPT_STAGE_NONE;
    detail::check(ckpt_ticket_state(engine_, iteration_, &stage));
    return stage;
  }
  // Waits until it, or a newer one, has reached `stage`. CKPT_OK, CKPT_ERR_TIMEOUT, or why it never will. Waiting for
  // more than CKPT_STAGE_CAPTURING needs before_update() to be called first, or by another thread.
  ckpt_status wait(ckpt_stage stage, std::chrono::milliseconds timeout) const {
    return ckpt_wait(engine_, iteration_, stage, timeout.count());
  }

 private:
  friend class Engine;
  Ticket(ckpt_engine* engine, std::int64_t iteration, ckpt_status status, std::string message)
      : engine_(engine), iteration_(iteration), status_(status), message_(std::move(message)) {}

  ckpt_engine* engine_;
  std::int64_t iteration_;
  ckpt_status status_;
  std::string message_;
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
  // moved, unregistered or the engine is gone. Throws Error: CKPT_ERR_INVALID for a name that is taken, or a null with
  // a size.
  void register_tensor(const std::string& name, void* data, ckpt_dtype dtype, std::span<const std::int64_t> shape,
                       ckpt_memory memory = CKPT_HOST, ckpt_capture capture = CKPT_OVERLAPPED) {
    const ckpt_tensor tensor{name.c_str(), data,   dtype, shape.data(), static_cast<std::int32_t>(shape.size()),
                             memory,       capture};
    detail::check(ckpt_register_tensor(engine_, &tensor));
  }
  void register_tensor(const std::string& name, void* data, ckpt_dtype dtype, std::initializer_list<std::int64_t> shape,
                       ckpt_memory memory = CKPT_HOST, ckpt_capture capture = CKPT_OVERLAPPED) {
    register_tensor(name, data, dtype, std::span(shape.begin(), shape.size()), memory, capture);
  }
  // A blob of the rank's own (RNG state, data position): private, captured at once.
  void register_blob(const std::string& name, void* data, std::size_t size_bytes) {
    register_tensor(name, data, CKPT_U8, {static_cast<std::int64_t>(size_bytes)}, CKPT_HOST, CKPT_AT_ONCE);
  }
  // Tells a tensor's new address. Not between snapshot() and before_update(). Throws Error.
  void move_tensor(const std::string& name, void* data) {
    detail::check(ckpt_move_tensor(engine_, name.c_str(), data));
  }
  // Forgets a tensor. Not between snapshot() and before_update(). Throws Error.
  void unregister_tensor(const std::string& name) { detail::check(ckpt_unregister_tensor(engine_, name.c_str())); }

  // What an earlier life left, as JSON (see ckpt_stored_layout). Takes part in the job's restore decision, so every
  // rank calls this or restore(). Throws Error.
  std::string stored_layout() {
    const char* json = nullptr;
    detail::check(ckpt_stored_layout(engine_, &json));
    return json;
  }

  // Brings the newest state that every rank can get into the registered tensors, verified; not found is a fresh start.
  // Once, before the first snapshot. Blocks at most the option `restore_timeout_ms`. Throws Error; the tensors are
  // undefined then, but nothing stored is lost.
  // `stream` is a cudaStream_t, for tensors in device memory: see ckpt_restore_on().
  Restored restore(void* stream = nullptr) {
    Restored restored{};
    detail::check(ckpt_restore_on(engine_, stream, &restored));
    restored.message = ckpt_last_error();
    return restored;
  }

  // Starts the snapshot of `iteration`, after all of its updates, and returns at once. Throws Error for wrong use alone
  // (CKPT_ERR_INVALID: iterations that go backwards, no restore(), no tensors).
  // With tensors in device memory, as they are behind what is on `stream`: see ckpt_snapshot_on().
  Ticket snapshot(std::int64_t iteration, void* stream = nullptr) {
    const ckpt_status status = ckpt_snapshot_on(engine_, iteration, stream);
    if (status == CKPT_ERR_INVALID) throw Error(status, ckpt_last_error());
    return {engine_, iteration, status, ckpt_last_error()};
  }

  // Call before the next change of registered tensors: blocks until the last snapshot is captured. CKPT_ERR_DISCARDED
  // when it could not be; training is not affected.
  ckpt_status before_update() { return before_update({nullptr}); }
  // With tensors in device memory: makes these streams wait, not the host. Name all that change them.
  ckpt_status before_update(std::initializer_list<void*> streams) {
    const ckpt_status status = ckpt_before_update_on(engine_, std::data(streams), streams.size());
    if (status == CKPT_ERR_INVALID) throw Error(status, ckpt_last_error());
    return status;
  }

  // Gives up the capture that snapshot() began and before_update() has not ended: for state that was changed too early.
  void discard() { detail::check(ckpt_discard(engine_)); }

  // Around each communication of training; see ckpt_comm_begin(). Communication, below, calls both. Throw Error for
  // wrong use alone.
  void comm_begin(std::uint32_t stream = 0) const { detail::check(ckpt_comm_begin(engine_, stream)); }
  void comm_end(std::uint32_t stream = 0) const { detail::check(ckpt_comm_end(engine_, stream)); }

  // The same on the timeline of a GPU; see ckpt_comm_begin_on().
  void comm_begin(std::uint32_t stream, void* cuda_stream) const {
    detail::check(ckpt_comm_begin_on(engine_, stream, cuda_stream));
  }
  void comm_end(std::uint32_t stream, void* cuda_stream) const {
    detail::check(ckpt_comm_end_on(engine_, stream, cuda_stream));
  }

  // Counters and last measurements.
  ckpt_stats_t stats() const {
    ckpt_stats_t stats{};
    detail::check(ckpt_stats(engine_, &stats));
    return stats;
  }

  // Whether the job is protected, and if not, why; see ckpt_health().
  ckpt_health_t health() const {
    ckpt_health_t health{};
    health.struct_size = sizeof health;
    detail::check(ckpt_health(engine_, &health));
    return health;
  }
  // Has `callback` called when that changes, on a thread of the engine's; see ckpt_on_health().
  void on_health(ckpt_health_callback callback, void* user) const {
    detail::check(ckpt_on_health(engine_, callback, user));
  }

  // The C handle, still owned by this engine.
  ckpt_engine* handle() const { return engine_; }

 private:
  ckpt_engine* engine_ = nullptr;
};

// A communication of training, from its construction to the end of its scope:
//   {
//     const ckpt::Communication scope(engine);
//     all_reduce(gradients);
//   }
// Not longer than the engine lives, which must not be moved meanwhile.
class Communication {
 public:
  explicit Communication(const Engine& engine, std::uint32_t stream = 0) : engine_(engine), stream_(stream) {
    engine.comm_begin(stream);
  }
  ~Communication() { ckpt_comm_end(engine_.handle(), stream_); }
  Communication(const Communication&) = delete;
  Communication& operator=(const Communication&) = delete;

 private:
  const Engine& engine_;
  std::uint32_t stream_;
};

}  // namespace v0
}  // namespace ckpt

#endif  // CKPTENGINE_ENGINE_HPP
