#include "device/auto_device.hpp"

namespace ckpt::device {

void AutoDevice::reach(ckpt_memory memory, const void* data) {
  if (memory == CKPT_DEVICE && !cuda_) {
    cuda_ = std::make_unique<CudaDevice>(CudaDevice::ordinal_of(data), staging_bytes_);
    cuda_->attach(ranges_, owner_);
    cuda_->pace(pace_);
    used_ = cuda_.get();
  }
  used_.load()->reach(memory, data);
}

void AutoDevice::pace(CopyPace* pace) {
  pace_ = pace;
  host_.pace(pace);
  if (cuda_) cuda_->pace(pace);
}

void AutoDevice::attach(const std::vector<Range>& ranges, const Owner& owner) {
  used_.load()->attach(ranges, owner);
  ranges_ = ranges;
  owner_ = owner;
}

void AutoDevice::attach_also(const Range& range, const Owner& owner) {
  used_.load()->attach_also(range, owner);
  ranges_.push_back(range);
}

}  // namespace ckpt::device
