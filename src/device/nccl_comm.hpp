// A communicator of our own, beside those of training: between the ranks that hold each other's copies.
//
// Non-blocking: nothing here waits for another rank or for the GPU but the end. It takes one block of the GPU's
// (maxCTAs), for the network is slower than that.
//
// One thread uses it, the one that issues all that goes from this GPU to others, with the GPU's context current: up to
// 2.26 NCCL keeps what a group is at in the memory of the thread that issued it, so that this thread must not have
// ended before the communicator has.
//
// There is one way to end it, NCCL's abort, for one that hangs as for one that is idle: to finalize it needs the
// others. It frees memory, which waits for whatever is on the GPU. So the thread must be one that can be left alone.
// Another one may end it, too, while the thread that uses it is stuck in the driver.
#pragma once

#include <condition_variable>
#include <mutex>
#include <span>

#include "device/nccl_library.hpp"

namespace ckpt::device {

class NcclComm {
 public:
  struct Transfer {
    enum class Kind { send, receive } kind;
    int peer;
    CUdeviceptr data;  // in this GPU's memory, and there until what was enqueued is done
    std::size_t size_bytes;
  };

  // One of the ranks makes it, and tells the others. Throws Failure.
  static nccl::UniqueId new_id();

  // Begins to meet the other ranks. Throws Failure.
  NcclComm(const nccl::UniqueId& id, int ranks, int rank);
  ~NcclComm() { abort(); }
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  int ranks() const { return ranks_; }
  int rank() const { return rank_; }

  // Whether what was begun last has been taken up: the ranks have met, or the transfers are on their stream (and not
  // that they are done: an event recorded there from now on tells that). Throws Failure where anything went wrong,
  // also with transfers of before, and once it is being ended; after that there is only the end.
  bool ready() const;
  // All at once, on `stream`: done when all are. ready() was true since the last call. Of two ranks each sends to the
  // other in the order in which that one receives, in the same groups. Throws Failure.
  void exchange(std::span<const Transfer> transfers, CUstream stream);

  // Gives up what is under way, on this rank. By any thread, with no need of a context: NCCL first of all tells its
  // kernel to end, and only then calls the driver. Where it is being ended already, waits for that. May never return;
  // where it does, nothing reads or writes for it any more.
  void abort();

 private:
  using Lock = std::unique_lock<std::mutex>;
  // Held during each call of NCCL that uses it, which none ends meanwhile: one that hangs in the driver is of an
  // exchange(), and has nothing on the GPU yet that somebody might wait for. Throws Failure where it is being ended.
  Lock use() const;

  const int ranks_, rank_;
  nccl::Communicator* comm_ = nullptr;  // NCCL's own once it is being ended

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool is_ending_ = false, has_ended_ = false;
};

}  // namespace ckpt::device
