// CudaBacklog limits how many of our operations wait on a stream. The driver's queue takes about a thousand. When it is
// full, a call that enqueues blocks, perhaps while it holds a lock of the driver that training needs.
//
// Use it with the context current. Throws Failure.
#pragma once

#include <cstdint>
#include <vector>

#include "device/cuda_handles.hpp"

namespace ckpt::device {

class CudaBacklog {
 public:
  // The most operations that one chunk may take.
  static constexpr std::uint64_t chunk_operations_max = 72;

  // True if the next chunk may be enqueued.
  bool has_room() {
    while (!fits() && ended_ != begun_ && batches_[ended_ % batches_max].end.reached())
      operations_ -= batches_[ended_++ % batches_max].operations;
    return fits();
  }
  // Call it after a chunk was enqueued, with the number of its operations.
  void added(CUstream stream, std::uint64_t operations) {
    operations_ += operations;
    Batch& batch = batches_[begun_ % batches_max];
    batch.operations += operations;
    if (batch.operations < batch_operations_min) return;
    batch.end.record(stream);
    batches_[++begun_ % batches_max].operations = 0;
  }

 private:
  static constexpr std::uint64_t operations_max = 960, batch_operations_min = 48;
  // A batch is a number of operations that end with an event. One batch is still being filled; the others wait.
  static constexpr std::size_t batches_max = operations_max / batch_operations_min + 1;
  struct Batch {
    std::uint64_t operations = 0;
    Event end;
  };
  bool fits() const { return operations_ + chunk_operations_max <= operations_max; }

  std::uint64_t operations_ = 0;         // enqueued, and not known to have ended
  std::uint64_t begun_ = 0, ended_ = 0;  // numbers of batches
  std::vector<Batch> batches_ = std::vector<Batch>(batches_max);
};

}  // namespace ckpt::device
