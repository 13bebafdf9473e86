// NCCL, found at run time by the name under which training has loaded it: where PyTorch is, this is PyTorch's. Nothing
// is linked, and a process that does not use the GPU replication never opens it.
//
// Thread-safe. A library stays loaded once it is.
#pragma once

#include <string>

#include "device/nccl_abi.hpp"

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

// Its functions by their names without "nccl".
struct NcclLibrary {
#define CKPT_NCCL_MEMBER(name) nccl::name* name = nullptr;
  CKPT_NCCL_FUNCTIONS(CKPT_NCCL_MEMBER)
#undef CKPT_NCCL_MEMBER
};

// Loads it the first time. Throws Failure (CKPT_ERR_INVALID) where there is none, or one that is too old. Tried again
// at the next call.
const NcclLibrary& nccl_library();

// Throws Failure (CKPT_ERR_INVALID): the GPU replication is not possible here.
[[noreturn]] void refuse_nccl(const std::string& why);

// A call that failed: "ncclSend: remote process exited or there was a network error".
std::string nccl_text(const char* call, nccl::Result result);
// Throws Failure (CKPT_ERR_SYSTEM) with that text; that something is in progress is no error.
void check_nccl(const char* call, nccl::Result result);

}  // namespace ckpt::device
