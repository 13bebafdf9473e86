// Plans when to copy state from the GPU to host memory, so that training is disturbed least: REFT's hierarchical
// asynchronous snapshotting (section 4.1). Copies go first into bubbles, in which the GPU does nothing, and then beside
// computation. Last they go beside communication, if that uses another path (NVLink beside PCIe). Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/plan.hpp"

namespace ckpt::schedule {

enum class DeviceActivity { bubble, compute, communicate };

// What a GPU does for a while. The spans of an iteration are in order and leave no gaps.
struct DeviceSpan {
  DeviceActivity activity = DeviceActivity::bubble;
  double length_s = 0;
};

struct CopyRequest {
  std::vector<DeviceSpan> spans;
  std::uint64_t state_bytes = 0;
  std::uint64_t chunk_bytes = 32u << 20;  // most bytes of one copy
  double usable = 0.9;                    // mu: the share of each span that is used
  LinkModel link;                         // from device to host memory
  bool separate_paths = false;            // communication does not use the copy's path
};

struct PlannedCopy {
  std::uint32_t span = 0;  // spans.size(): after the last one
  std::uint64_t first_byte = 0;
  std::uint64_t size_bytes = 0;
  bool operator==(const PlannedCopy&) const = default;
};

struct CopyPlan {
  std::vector<PlannedCopy> copies;  // by first_byte, each byte once; ordered by time only within a layer
  std::uint64_t bubble_bytes = 0;
  std::uint64_t compute_bytes = 0;
  std::uint64_t communicate_bytes = 0;
  double overrun_s = 0;  // time of the copies after the last span: state must not change before they end
};

// Plans the copies of one snapshot. Throws std::invalid_argument as plan() does, for the same reasons. O(spans +
// copies).
CopyPlan plan_copies(const CopyRequest& request);

// How long the device of a pipeline stage is idle in an iteration with the schedule 1F1B, for when there is no profile
// yet. REFT's estimate is (0.8 p + 2 P - p - 2) C for stage p of P, counted from 0. C is the time of one micro-batch's
// pass, the mean of forward and backward. Then the first stage gets (P - 1) passes of each, as is known for 1F1B. Never
// negative. Throws std::invalid_argument unless stage < stages and the time is finite and not negative.
double bubble_time_1f1b_s(std::uint32_t stage, std::uint32_t stages, double pass_s);

}  // namespace ckpt::schedule
