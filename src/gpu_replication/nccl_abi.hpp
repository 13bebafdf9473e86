// Declares the part of NCCL's C interface that GPU replication uses. It has been the same since version 2.18; later
// versions only add to it. NCCL's own header would need NCCL and the CUDA runtime on the build machine.
#pragma once

#include <cuda.h>

#include <climits>
#include <cstddef>

namespace ckpt::device::nccl {

// The oldest version that is used, 2.20.0, as major * 10000 + minor * 100 + patch. In older ones ncclCommAbort() is
// unreliable.
inline constexpr int version_min = 22000;

struct Communicator;  // only NCCL knows its members

// Identifies a communicator. Anyone who has it may become a rank of the communicator.
struct UniqueId {
  char internal[128];
};

enum Result : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

enum DataType : int { uint8 = 1 };

inline constexpr int undefined = INT_MIN;

// Settings of a communicator. NCCL reads `size` bytes of them. It uses its defaults for fields that NCCL `version` did
// not have yet.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = version_min;
  int blocking = undefined;
  int cga_cluster_size = undefined;
  int min_ctas = undefined;
  int max_ctas = undefined;
  const char* net_name = nullptr;
  int split_share = undefined;
  int unused = undefined;  // in later versions this is a field
};
static_assert(sizeof(Config) == 48 && offsetof(Config, blocking) == 16 && offsetof(Config, max_ctas) == 28 &&
              offsetof(Config, net_name) == 32 && offsetof(Config, split_share) == 40);

using GetVersion = Result(int* version);
using GetErrorString = const char*(Result result);
using GetUniqueId = Result(UniqueId* id);
using CommInitRankConfig = Result(Communicator** communicator, int ranks, UniqueId id, int rank, Config* config);
using CommGetAsyncError = Result(Communicator* communicator, Result* error);
using CommAbort = Result(Communicator* communicator);
using CommRegister = Result(Communicator* communicator, void* data, std::size_t size_bytes, void** handle);
using GroupStart = Result();
using GroupEnd = Result();
using Send = Result(const void* data, std::size_t count, DataType type, int peer, Communicator* communicator,
                    CUstream stream);
using Recv = Result(void* data, std::size_t count, DataType type, int peer, Communicator* communicator,
                    CUstream stream);

}  // namespace ckpt::device::nccl
