// Creates the device for an engine in this build.
#pragma once

#include <memory>

#include "device/device.hpp"
#include "options/options.hpp"

namespace ckpt::device {

std::unique_ptr<Device> open_device(const Options& options);

}  // namespace ckpt::device
