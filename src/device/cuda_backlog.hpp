// CudaBacklog limits how many of our chunks wait on a stream. The driver's queue takes about a thousand operations.
// When it is full, a call that enqueues blocks, perhaps while it holds a lock of the driver that training needs.
//
// Use it with the context current. Throws Failure.
#pragma once

#include <cstdint>
#include <vector>

#include "device/cuda_handles.hpp"

namespace ckpt::device {

class CudaBacklog {
 public:
  // `chunks_max` is a multiple of 16.
  explicit CudaBacklog(std::size_t chunks_max) : batch_ends_(chunks_max / batch_chunks) {}

  // True if the next chunk may be enqueued.
  bool has_room() const { return chunks_ % batch_chunks != 0 || end_of(chunks_ / batch_chunks).reached(); }
  // Call it after a chunk was enqueued.
  void added(CUstream stream) {
    if (++chunks_ % batch_chunks == 0) end_of(chunks_ / batch_chunks - 1).record(stream);
  }

 private:
  static constexpr std::uint64_t batch_chunks = 16;
  const Event& end_of(std::uint64_t batch) const { return batch_ends_[batch % batch_ends_.size()]; }

  std::uint64_t chunks_ = 0;  // ever
  std::vector<Event> batch_ends_;
};

}  // namespace ckpt::device
