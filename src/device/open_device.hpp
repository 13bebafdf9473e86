// Makes the device for an engine. What it can be depends on the build: with CUDA or without.
#pragma once

#include <memory>

#include "device/device.hpp"
#include "options/options.hpp"

namespace ckpt::device {

std::unique_ptr<Device> open_device(const Options& options);

}  // namespace ckpt::device
