// CudaBounce copies host memory that is not pinned to the GPU. Several threads copy it, part by part, into a few pinned
// buffers, from which the GPU gets it. The driver could do this alone, but fills its buffers with one thread. To pin
// memory that is read only once would take longer than to read it.
//
// One thread at a time may use it. The copies must have ended before the object is destroyed.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>

#include "base/clock.hpp"
#include "device/copy_pool.hpp"
#include "device/cuda_handles.hpp"

namespace ckpt::device {

class CudaBounce {
 public:
  // `context` outlives the object, and is current now. Throws Failure.
  explicit CudaBounce(const Context& context);

  // Enqueues a copy, in parts, whose order in the stream is any. `from` may change when this returns. Waits until
  // buffers are free. Throws Failure, with CKPT_ERR_TIMEOUT if no buffer is free at the deadline.
  void copy_to_device(CUdeviceptr to, const std::byte* from, std::size_t size_bytes, CUstream stream,
                      Deadline deadline);

 private:
  struct Buffer {
    std::mutex mutex;  // held while a thread fills the buffer and enqueues its copy
    std::byte* data = nullptr;
    Event emptied;
  };
  // Any thread of the pool.
  void copy_part(CUdeviceptr to, const std::byte* from, std::size_t size_bytes, CUstream stream, Deadline deadline);
  bool keep_failure(std::exception_ptr failure);

  const Context& context_;
  const PinnedMemory memory_;
  static constexpr std::size_t buffer_count = 16;
  std::array<Buffer, buffer_count> buffers_;  // for each thread one that is filled and one that is copied
  std::atomic<std::size_t> next_{0};
  std::mutex failure_mutex_;
  std::exception_ptr failure_;  // the first one of a copy
  CopyPool threads_;            // the last member: its threads end first
};

}  // namespace ckpt::device
