#include "client/interposed.hpp"

#include <dlfcn.h>

#include "base/error.hpp"

namespace ckpt::client {
namespace {

constexpr unsigned quiet_iterations_max = 5;

}  // namespace

template <class Function>
Function* Interposed::find(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

Interposed::Interposed()
    : attach_(find<ckpt_interpose_attach_function>("ckpt_interpose_attach")),
      detach_(find<ckpt_interpose_detach_function>("ckpt_interpose_detach")),
      abort_(find<ckpt_interpose_abort_function>("ckpt_interpose_abort")),
      calls_(find<ckpt_interpose_calls_function>("ckpt_interpose_calls")),
      static_nccl_(find<ckpt_interpose_static_nccl_function>("ckpt_interpose_static_nccl")) {}

std::optional<std::string> Interposed::attach(const ckpt_interposed_engine& engine) {
  if (attach_ == nullptr || detach_ == nullptr || abort_ == nullptr || calls_ == nullptr || static_nccl_ == nullptr)
    return std::nullopt;
  const char* const problem = attach_(&engine);
  engine_ = engine.engine;
  calls_before_ = calls_();
  if (problem == nullptr) return std::nullopt;
  return problem;
}

void Interposed::detach() {
  if (engine_ != nullptr) detach_(engine_);
  engine_ = nullptr;
}

std::optional<std::string> Interposed::after_iteration() {
  if (engine_ == nullptr || has_own_marks() || ++iterations_ != quiet_iterations_max || calls_() != calls_before_)
    return std::nullopt;
  const char* const file = static_nccl_();
  return "no call of NCCL has come through libckptinterpose.so in " + std::to_string(iterations_) +
         " iterations, so a hang of a communication is not seen, and nothing aborts it. " +
         (file == nullptr ? std::string("NCCL may be linked statically") : "NCCL is part of " + std::string(file)) +
         ": use a build that loads libnccl.so.2, or mark communications with ckpt_comm_begin()";
}

void Interposed::abort_communicators(std::uint64_t incarnation, std::int64_t timeout_ms) const {
  if (engine_ == nullptr) return;
  if (const std::uint32_t left = abort_(engine_, incarnation, timeout_ms); left != 0)
    throw Failure(CKPT_ERR_TIMEOUT, "ncclCommAbort() did not return for " + std::to_string(left) +
                                        " communicators within " + std::to_string(timeout_ms) +
                                        " ms, so the GPU may still write to tensors; end this process and restart the "
                                        "rank");
}

}  // namespace ckpt::client
