// Loads the NCCL library at run time, by the name under which training loads it. With PyTorch, this is PyTorch's copy.
// We link to no NCCL, and a process without GPU replication never opens it.
//
// Thread-safe. The library is never unloaded.
#pragma once

#include <string>

#include "gpu_replication/nccl_abi.hpp"

namespace ckpt::device {

#define CKPT_NCCL_FUNCTIONS(X) \
  X(GetVersion)                \
  X(GetErrorString)            \
  X(GetUniqueId)               \
  X(CommInitRankConfig)        \
  X(CommGetAsyncError)         \
  X(CommAbort)                 \
  X(GroupStart)                \
  X(GroupEnd)                  \
  X(Send)                      \
  X(Recv)

// Functions that only some versions have. They are null if this one lacks them.
#define CKPT_NCCL_OPTIONAL_FUNCTIONS(X) X(CommRegister)

// NCCL's functions, by their names without the prefix "nccl".
struct NcclLibrary {
#define CKPT_NCCL_MEMBER(name) nccl::name* name = nullptr;
  CKPT_NCCL_FUNCTIONS(CKPT_NCCL_MEMBER)
  CKPT_NCCL_OPTIONAL_FUNCTIONS(CKPT_NCCL_MEMBER)
#undef CKPT_NCCL_MEMBER
};

// Loads NCCL at the first call, and returns its functions. Throws Failure (CKPT_ERR_INVALID) if there is no NCCL or it
// is too old. The next call then tries again.
const NcclLibrary& nccl_library();

// Throws Failure (CKPT_ERR_INVALID): checkpoints cannot go from GPU to GPU here. `why` is the end of the sentence: the
// reason, and what to do.
[[noreturn]] void refuse_nccl(const std::string& why);

// Returns a text about a failed call, e.g. "ncclSend: remote process exited or there was a network error".
std::string nccl_text(const char* call, nccl::Result result);
// Throws Failure (CKPT_ERR_SYSTEM) with that text, unless the result is `success` or `in_progress`.
void check_nccl(const char* call, nccl::Result result);

}  // namespace ckpt::device
