// Two ranks in one process that communicate through libckptinterpose, on the test doubles of GPU and NCCL.
#pragma once

#include <array>
#include <optional>

#include "nccl.hpp"
#include "src/interpose/interface.h"

extern "C" {
const char* ncclGetLastError(ckpt::device::nccl::Communicator* communicator);
ckpt_interpose_attach_function ckpt_interpose_attach;
ckpt_interpose_detach_function ckpt_interpose_detach;
ckpt_interpose_abort_function ckpt_interpose_abort;
ckpt_interpose_calls_function ckpt_interpose_calls;
}

namespace ckpt::testing_support {

class NcclPair {
 public:
  static constexpr std::size_t size_bytes = 100'003;

  NcclPair() {
    nccl::UniqueId id{};
    EXPECT_EQ(ncclGetUniqueId(&id), nccl::success);
    for (int rank = 0; rank < 2; ++rank) {
      nccl::Config config;
      config.blocking = 0;
      EXPECT_EQ(ncclCommInitRankConfig(&comms[rank], 2, id, rank, &config), nccl::in_progress);
      streams[rank].emplace();
      sent[rank].emplace(bytes_of(size_bytes, rank + 1u));
      received[rank].emplace(size_bytes);
    }
    for (const int rank : {0, 1}) EXPECT_TRUE(becomes_ready(rank));
    for (const int rank : {0, 1}) exchange(rank);  // connects them
    for (const int rank : {0, 1}) EXPECT_TRUE(becomes_ready(rank) && becomes_idle(rank));
  }
  ~NcclPair() {
    for (nccl::Communicator* const comm : comms)
      if (comm != nullptr) ncclCommAbort(comm);
  }
  NcclPair(const NcclPair&) = delete;
  NcclPair& operator=(const NcclPair&) = delete;

  // The rank's half of an exchange, as one group.
  nccl::Result exchange(int rank) const {
    ncclGroupStart();
    ncclSend(sent[rank]->data(), size_bytes, nccl::uint8, 1 - rank, comms[rank], *streams[rank]);
    ncclRecv(received[rank]->data(), size_bytes, nccl::uint8, 1 - rank, comms[rank], *streams[rank]);
    return ncclGroupEnd();
  }
  nccl::Result error(int rank) const {
    nccl::Result error = nccl::success;
    EXPECT_EQ(ncclCommGetAsyncError(comms[rank], &error), nccl::success);
    return error;
  }
  bool becomes_ready(int rank) const {
    return eventually([&] { return error(rank) == nccl::success; });
  }
  bool is_idle(int rank) const { return cuStreamQuery(*streams[rank]) == CUDA_SUCCESS; }
  bool becomes_idle(int rank) const {
    return eventually([&] { return is_idle(rank); });
  }

  std::array<nccl::Communicator*, 2> comms{};
  std::array<std::optional<GpuStream>, 2> streams;
  std::array<std::optional<GpuBytes>, 2> sent, received;
};

}  // namespace ckpt::testing_support
