#include "device/cuda_pacing.hpp"

namespace ckpt::device {

bool CudaPacing::may_pack() const {
  return pace_ == nullptr || pace_->may_enqueue({pipeline_.leaves_left(), pipeline_.chunk_leaves(),
                                                 pipeline_.leaves_under_way(), pipeline_.entered()});
}

// The pace is asked first: it learns from each capture, also from one whose update is due already.
bool CudaPacing::holds_back() const {
  return pace_ != nullptr && !pipeline_.is_packed() && pace_->holds_back(pipeline_.leaves_left()) &&
         !pipeline_.is_update_due();
}

void CudaPacing::hurry() const {
  if (pace_ != nullptr && !pipeline_.is_packed()) pace_->hurry();
}

// The GPU copies one chunk after the other: the next one begins when the one before it has arrived.
void CudaPacing::look() {
  if (pace_ == nullptr) return;
  const auto now = Clock::now();
  const auto look_at_next = [&] {
    is_copying_ = pipeline_.leaves_under_way() != 0 && pipeline_.entered();
    if (is_copying_) layer_ = pace_->layer_now(pipeline_.is_awaited());
  };
  if (!is_copying_) look_at_next();
  while (is_copying_) {
    const auto arrived = pipeline_.take_arrived();
    if (!arrived) return;
    const auto copied = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(arrived->copied_s));
    pace_->copied(layer_, arrived->leaves, now - copied, now);
    look_at_next();
  }
}

}  // namespace ckpt::device
