// CudaBounce copies host memory that is not pinned to the GPU. The bytes go through a few pinned buffers, which several
// threads fill. The driver could do this alone, but fills its buffers with one thread. To pin memory that is read only
// once would take longer than to read it.
//
// One thread at a time may use it, with the context current. The copies must have ended before the object is destroyed.
#pragma once

#include <array>
#include <cstddef>

#include "base/clock.hpp"
#include "device/copy_pool.hpp"
#include "device/cuda_handles.hpp"

namespace ckpt::device {

class CudaBounce {
 public:
  // Throws Failure.
  CudaBounce();

  // Enqueues a copy, in parts. `from` may change when this returns. Waits until buffers are free. Throws Failure, with
  // CKPT_ERR_TIMEOUT if no buffer is free at the deadline.
  void copy_to_device(CUdeviceptr to, const std::byte* from, std::size_t size_bytes, CUstream stream,
                      Deadline deadline);

 private:
  struct Buffer {
    PinnedMemory memory;
    Event emptied;
  };
  void copy_part(CUdeviceptr to, const std::byte* from, std::size_t size_bytes, CUstream stream, Deadline deadline);

  std::array<Buffer, 3> buffers_;  // one is filled, one is copied, and one waits for its turn
  std::size_t next_ = 0;
  CopyPool threads_;
};

}  // namespace ckpt::device
