#include "device/auto_device.hpp"

namespace ckpt::device {

void AutoDevice::reach(ckpt_memory memory, const void* data) {
  if (memory == CKPT_DEVICE && !cuda_) {
    cuda_ = std::make_unique<CudaDevice>(CudaDevice::ordinal_of(data), staging_bytes_);
    cuda_->attach(ranges_);
    used_ = cuda_.get();
  }
  used_.load()->reach(memory, data);
}

void AutoDevice::attach(std::vector<Range> ranges) {
  ranges_ = ranges;
  used_.load()->attach(std::move(ranges));
}

void AutoDevice::attach_also(Range range) {
  ranges_.push_back(range);
  used_.load()->attach_also(range);
}

}  // namespace ckpt::device
