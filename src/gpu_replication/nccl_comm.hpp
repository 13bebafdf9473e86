// NcclComm is an NCCL communicator of our own, for the ranks of one replication group. Training has its own
// communicators.
//
// It never blocks except when it ends. It takes one block of the GPU (maxCTAs), which is enough, because the network is
// slower.
//
// Only the progress thread uses it, with the GPU's context current. Up to 2.26, NCCL keeps a group's progress in the
// memory of the thread that issued the group. So that thread must live longer than the communicator.
//
// NCCL's abort is the only way to end it, because an orderly end needs the other ranks. The abort frees memory, which
// waits for everything on the GPU. So it must run on a thread that can be left alone. If the progress thread is stuck
// in the driver, another thread may run the abort.
#pragma once

#include <condition_variable>
#include <mutex>
#include <span>

#include "gpu_replication/nccl_library.hpp"

namespace ckpt::device {

class NcclComm {
 public:
  struct Transfer {
    enum class Kind { send, receive } kind;
    int peer;
    CUdeviceptr data;  // in this GPU's memory; must stay until the transfer is done
    std::size_t size_bytes;
  };

  // Makes the id. One rank does this and sends it to the others. Throws Failure.
  static nccl::UniqueId new_id();

  // Begins to meet the other ranks. Throws Failure.
  NcclComm(const nccl::UniqueId& id, int ranks, int rank);
  ~NcclComm() { abort(); }
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  int ranks() const { return ranks_; }
  int rank() const { return rank_; }

  // True if the last thing begun has been accepted: the ranks have met, or the transfers are enqueued on their stream.
  // An event recorded there from now on tells when the transfers are done. Throws Failure if anything went wrong, also
  // with earlier transfers, and once the communicator is being ended. After that it can only be ended.
  bool ready() const;
  // Enqueues all transfers together on `stream`; they are done when all are. ready() must have returned true since the
  // last call. For each pair of ranks, one sends in the order in which the other receives, in the same groups. Throws
  // Failure.
  void exchange(std::span<const Transfer> transfers, CUstream stream);

  // Gives up what is under way on this rank. For any thread, without a context: NCCL first tells its kernel to end, and
  // only then calls the driver. If it is being ended already, waits for that. May never return. Once it returns, NCCL
  // reads and writes nothing any more.
  void abort();

 private:
  using Lock = std::unique_lock<std::mutex>;
  // Held during each call to NCCL, so nobody ends the communicator meanwhile. A call that hangs in the driver belongs
  // to an exchange(), and has nothing on the GPU yet that anyone might wait for. Throws Failure if it is being ended.
  Lock use() const;

  const int ranks_, rank_;
  nccl::Communicator* comm_ = nullptr;  // must not be used once it is being ended

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool is_ending_ = false, has_ended_ = false;
};

}  // namespace ckpt::device
