// When to copy state from the device to host memory: REFT's hierarchical asynchronous snapshotting (section 4.1). First
// while the device does nothing (bubbles), then beside computation, and last, where training communicates over a path
// of its own (NVLink beside PCIe), beside communication. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/plan.hpp"

namespace ckpt::schedule {

enum class DeviceActivity { bubble, compute, communicate };

// What a device does in an iteration, in order and without gaps.
struct DeviceSpan {
  DeviceActivity activity = DeviceActivity::bubble;
  double length_s = 0;
};

struct CopyRequest {
  std::vector<DeviceSpan> spans;
  std::uint64_t state_bytes = 0;
  std::uint64_t chunk_bytes = 32u << 20;  // most of one copy
  double usable = 0.9;                    // mu: of each span
  LinkModel link;                         // from device to host memory
  bool separate_paths = false;            // whether communication leaves the copy's path alone
};

struct PlannedCopy {
  std::uint32_t span = 0;  // spans.size(): after the last one
  std::uint64_t first_byte = 0;
  std::uint64_t size_bytes = 0;
  bool operator==(const PlannedCopy&) const = default;
};

struct CopyPlan {
  std::vector<PlannedCopy> copies;  // by first_byte: every byte once. A layer's are in the order of time, layers not
  std::uint64_t bubble_bytes = 0;
  std::uint64_t compute_bytes = 0;
  std::uint64_t communicate_bytes = 0;
  double overrun_s = 0;  // of the copies after the last span: state must not change before they end
};

// Throws std::invalid_argument as plan() does, for the same reasons. O(spans + copies).
CopyPlan plan_copies(const CopyRequest& request);

// How long the device of a pipeline stage is idle in an iteration with the schedule 1F1B, for when there is no profile
// yet: REFT's (0.8 p + 2 P - p - 2) C for stage p of P, counted from 0. C is the time of one micro-batch's pass, the
// mean of forward and backward: so the first stage gets (P - 1) passes of each, as it is known for 1F1B. Never
// negative. Throws std::invalid_argument unless stage < stages and the time is finite and not negative.
double bubble_time_1f1b_s(std::uint32_t stage, std::uint32_t stages, double pass_s);

}  // namespace ckpt::schedule
