// Interposed connects an engine with libckptinterpose, if that was preloaded. libckptinterpose then marks NCCL's
// communications for the engine, and aborts NCCL's communicators after a late capture (docs/jit.md).
//
// The training thread uses it, except for own_marks().
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "interpose/interface.h"

namespace ckpt::client {

class Interposed {
 public:
  // Looks for libckptinterpose in this process.
  Interposed();
  ~Interposed() { detach(); }
  Interposed(const Interposed&) = delete;
  Interposed& operator=(const Interposed&) = delete;

  // Lets libckptinterpose call `engine`'s functions, on any thread, until detach(). Returns a warning for people if
  // libckptinterpose is there and cannot do its work. Does nothing without libckptinterpose.
  std::optional<std::string> attach(const ckpt_interposed_engine& engine);
  void detach();

  // Any thread. Call this when training marks its communications itself. With the marks of libckptinterpose, they would
  // count twice.
  void own_marks() { has_own_marks_.store(true, std::memory_order_relaxed); }
  bool has_own_marks() const { return has_own_marks_.load(std::memory_order_relaxed); }
  // Call this after each iteration of a job with several GPUs. Returns a warning, once, if no call of NCCL has come
  // through libckptinterpose in the first few iterations.
  std::optional<std::string> after_iteration();
  // Aborts the communicators of a halted incarnation, and waits until the aborts have ended. Throws Failure if one does
  // not end in time.
  void abort_communicators(std::uint64_t incarnation, std::int64_t timeout_ms) const;

 private:
  template <class Function>
  static Function* find(const char* name);

  ckpt_interpose_attach_function* const attach_;
  ckpt_interpose_detach_function* const detach_;
  ckpt_interpose_abort_function* const abort_;
  ckpt_interpose_calls_function* const calls_;
  ckpt_interpose_static_nccl_function* const static_nccl_;
  void* engine_ = nullptr;  // null: not attached
  std::atomic<bool> has_own_marks_{false};
  std::uint64_t calls_before_ = 0;
  unsigned iterations_ = 0;
};

}  // namespace ckpt::client
