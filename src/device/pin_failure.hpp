// Says why the driver may have refused to pin host memory for the GPU: what it said, where the memory is, and which
// limit is too low, if one is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/device.hpp"

namespace ckpt::device {

// How much memory this process may lock. Nothing if it may lock any amount.
std::optional<std::uint64_t> lockable_bytes();

// `refusal` is the driver's error. All ranges are in one file system.
std::string pin_failure(const std::vector<Range>& ranges, const std::string& refusal,
                        std::optional<std::uint64_t> lockable = lockable_bytes());

}  // namespace ckpt::device
