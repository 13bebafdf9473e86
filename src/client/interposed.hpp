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

  // From now on `engine`'s functions are called, on any thread, until detach(). Returns a sentence if they are not, or
  // if NCCL's calls do not come by.
  std::optional<std::string> attach(const ckpt_interposed_engine& engine);
  void detach();

  // Any thread. Training marks its communications itself, so those of libckptinterpose would come twice.
  void own_marks() { has_own_marks_.store(true, std::memory_order_relaxed); }
  bool has_own_marks() const { return has_own_marks_.load(std::memory_order_relaxed); }
  // After an iteration of training on several GPUs. Returns a sentence, once, if NCCL has not been called by then.
  std::optional<std::string> after_iteration();
  // Aborts the communicators of a halted incarnation, and waits for that. Throws Failure if an abort does not end.
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
