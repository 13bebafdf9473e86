// NcclComm is an NCCL communicator of our own, for the ranks of one replication group. Training has its own
// communicators.
//
// Its calls never block, except abort(). NCCL runs it on one thread block of the GPU (maxCTAs). A step must be able to
// begin beside training's collectives, and they leave room for one block. With memory that use_memory() has named,
// NCCL from 2.24 on lets the adapter move the bytes. Then the block only waits, so more of them would not help.
//
// Only the progress thread uses it, with the GPU's context current. Up to 2.26, NCCL keeps a group's progress in the
// memory of the thread that issued the group. So that thread must live longer than the communicator.
//
// NCCL's abort is the only way to end a communicator, because an orderly end needs the other ranks. The abort frees
// memory, which waits for everything on the GPU and may never return. So call abort() on a thread for which nobody
// waits. If the progress thread is stuck in the driver, another thread may call abort().
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
    CUdeviceptr data;  // in this GPU's memory, which must stay until the transfer is done
    std::size_t size_bytes;
  };

  // Makes the id of a new communicator. One rank does this and sends the id to the others. Throws Failure.
  static nccl::UniqueId new_id();

  // Begins to meet the other ranks, and does not wait for them (see ready()). Throws Failure.
  NcclComm(const nccl::UniqueId& id, int ranks, int rank);
  ~NcclComm() { abort(); }
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  int ranks() const { return ranks_; }
  int rank() const { return rank_; }

  // True once NCCL has finished the last call: the ranks have met, or the transfers of exchange() are enqueued on their
  // stream. An event recorded on this stream from then on tells when the transfers are done. Throws Failure if anything
  // went wrong, also with earlier transfers, or if abort() was called. After a Failure only abort() may be called.
  bool ready() const;
  // Tells NCCL that transfers will use this memory, so that adapters may read and write it directly. Otherwise NCCL's
  // kernel copies the bytes to NCCL's own buffers. Call it once, when ready() has returned true and before exchange().
  // The memory must stay until abort() has returned. It makes no difference if NCCL cannot use that memory, or if its
  // version lacks the call.
  void use_memory(CUdeviceptr data, std::size_t size_bytes);
  // Enqueues the transfers as one group on `stream`. They run at the same time, and end together. ready() must have
  // returned true since the last call. If one rank sends to another, the other one must receive in the same order and
  // in the same groups. Throws Failure.
  void exchange(std::span<const Transfer> transfers, CUstream stream);

  // Gives up all transfers under way on this rank and ends the communicator. Any thread may call it, without a current
  // context: NCCL first tells its kernel to end, and only then calls the driver. If another thread is in abort()
  // already, waits for that thread. May never return. Once it has returned, NCCL reads and writes no memory any more.
  void abort();

 private:
  using Lock = std::unique_lock<std::mutex>;
  // Returns the lock to hold during each call to NCCL, so that nobody ends the communicator meanwhile. If
  // exchange() hangs in the driver, it holds the lock, and abort() waits for it. Training is not blocked by that,
  // because such an exchange() has put nothing on the GPU yet. No other call hangs with the lock. Throws Failure if
  // abort() was called.
  Lock use() const;

  const int ranks_, rank_;
  nccl::Communicator* comm_ = nullptr;  // must not be used once is_ending_ is set

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool is_ending_ = false, has_ended_ = false;
};

}  // namespace ckpt::device
