// Plans when to copy state from the GPU to host memory, so that training is disturbed least: REFT's hierarchical
// asynchronous snapshotting (section 4.1). The plan first fills bubbles, in which the GPU does nothing. Then it copies
// beside computation. Last it copies beside communication, if that uses another path (NVLink instead of PCIe). Pure
// functions.
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
  std::uint64_t chunk_bytes = 32u << 20;  // no copy is larger
  double usable = 0.9;                    // mu of GEMINI: the share of each span that copies may fill
  LinkModel link;                         // from device to host memory
  bool separate_paths = false;            // true: communication does not use the path of the copies
};

// One copy from device to host memory.
struct PlannedCopy {
  std::uint32_t span = 0;  // number of the span in which it runs; spans.size(): after the last span
  std::uint64_t first_byte = 0;
  std::uint64_t size_bytes = 0;
  bool operator==(const PlannedCopy&) const = default;
};

struct CopyPlan {
  std::vector<PlannedCopy> copies;      // sorted by first_byte; each byte is in one copy. Not in the order of time
  std::uint64_t bubble_bytes = 0;       // bytes copied in bubbles
  std::uint64_t compute_bytes = 0;      // bytes copied beside computation
  std::uint64_t communicate_bytes = 0;  // bytes copied beside communication
  double overrun_s = 0;                 // time of the copies after the last span; until they end, state must not change
};

// Plans the copies of one snapshot. Throws std::invalid_argument if a value of the request is out of range. O(spans +
// copies).
CopyPlan plan_copies(const CopyRequest& request);

// Estimates how long the device of a pipeline stage is idle in an iteration with the schedule 1F1B. Use the estimate
// until a profile is known. REFT's estimate is (0.8 p + 2 P - p - 2) C for stage p of P, counted from 0. `pass_s` is C,
// the mean time of a forward and a backward pass of one micro-batch. For the first stage, this gives the known result
// for 1F1B: it is idle for P - 1 forward and P - 1 backward passes. The result is never negative. Throws
// std::invalid_argument unless stage < stages and pass_s is finite and not negative.
double bubble_time_1f1b_s(std::uint32_t stage, std::uint32_t stages, double pass_s);

}  // namespace ckpt::schedule
