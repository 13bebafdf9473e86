#include "device/open_device.hpp"

#ifdef CKPT_HAS_CUDA
#include "device/auto_device.hpp"
#else
#include "device/host_device.hpp"
#endif

namespace ckpt::device {

std::unique_ptr<Device> open_device(const Options& options) {
#ifdef CKPT_HAS_CUDA
  return std::make_unique<AutoDevice>(options.copy_threads, options.gpu_staging_bytes);
#else
  return std::make_unique<HostDevice>(options.copy_threads);
#endif
}

}  // namespace ckpt::device
