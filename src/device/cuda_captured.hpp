// CudaCaptured gives GPU replication the bytes of captures while they are on the GPU (docs/gpu.md). It belongs to a
// CudaDevice, and may outlive it, because a progress thread may outlive its replicator.
//
// Only progress threads call copy(), with the context current. copy() waits for nobody.
#pragma once

#include <mutex>

#include "device/cuda_staging_pipeline.hpp"

namespace ckpt::device {

class CudaCaptured {
 public:
  // `mutex` guards the pipeline. Both must live until detach() has returned.
  CudaCaptured(std::mutex& mutex, CudaStagingPipeline& pipeline) : guard_(mutex), pipeline_(&pipeline) {}

  enum class Answer {
    copying,  // the copy is enqueued, and the event is recorded after it
    busy,     // another thread uses the pipeline; ask again soon
    absent,   // see CudaStagingPipeline::copy_captured()
  };
  // Does what CudaStagingPipeline::copy_captured() does. Throws Failure.
  Answer copy(std::uint64_t capture, std::uint64_t first_byte, std::uint64_t size_bytes, CUdeviceptr to,
              const Event& copied) {
    const std::lock_guard lock(mutex_);
    if (pipeline_ == nullptr) return Answer::absent;
    const std::unique_lock guard(guard_, std::try_to_lock);
    if (!guard) return Answer::busy;
    return pipeline_->copy_captured(capture, first_byte, size_bytes, to, copied) ? Answer::copying : Answer::absent;
  }
  // From now on the bytes of all captures are absent. Waits for copy(), which may be in a call of the driver.
  void detach() {
    const std::lock_guard lock(mutex_);
    pipeline_ = nullptr;
  }

 private:
  std::mutex mutex_;  // taken before guard_
  std::mutex& guard_;
  CudaStagingPipeline* pipeline_;
};

}  // namespace ckpt::device
