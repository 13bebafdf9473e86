// Creates the device for an engine in this build.
#pragma once

#include <memory>

#include "options/options.hpp"
#include "device/device.hpp"

namespace ckpt::device {

std::unique_ptr<Device> open_device(const Options& options);

}  // namespace ckpt::device
