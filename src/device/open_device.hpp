// Makes the device for an engine. In a build without CUDA, it takes only tensors in host memory.
#pragma once

#include <memory>

#include "device/device.hpp"
#include "options/options.hpp"

namespace ckpt::device {

std::unique_ptr<Device> open_device(const Options& options);

}  // namespace ckpt::device
