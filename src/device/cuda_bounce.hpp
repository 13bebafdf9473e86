// CudaBounce copies host memory that is not pinned to the GPU: through a few pinned buffers, which several threads
// fill. A driver fills its own with one thread. Pinning memory that is read once takes longer than reading it.
//
// One thread at a time may use it, with the context current. Before the destructor, the copies must have ended.
#pragma once

#include <array>
#include <cstddef>

#include "base/clock.hpp"
#include "device/copy_pool.hpp"
#include "device/cuda_handles.hpp"

namespace ckpt::device {

class CudaBounce {
 public:
  // For copies of up to `copy_max_bytes`. Throws Failure.
  explicit CudaBounce(std::size_t copy_max_bytes);

  // Enqueues a copy. `from` may change when this returns. Waits until a buffer is free. Throws Failure,
  // CKPT_ERR_TIMEOUT if none is by then.
  void copy_to_device(CUdeviceptr to, const std::byte* from, std::size_t size_bytes, CUstream stream,
                      Deadline deadline);

 private:
  struct Buffer {
    PinnedMemory memory;
    Event emptied;
  };
  std::array<Buffer, 3> buffers_;  // one is filled, one is copied, and one waits for its turn
  std::size_t next_ = 0;
  CopyPool threads_;
};

}  // namespace ckpt::device
