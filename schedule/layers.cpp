#include "schedule/layers.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace ckpt::schedule {

namespace {

void check(const CopyRequest& request) {
  const auto refuse = [](const std::string& sentence) { throw std::invalid_argument(sentence); };
  if (request.chunk_bytes == 0) refuse("chunk_bytes is 0: set it to the size of one copy, at least 1");
  if (!(request.usable > 0 && request.usable < 1))
    refuse("usable is " + std::to_string(request.usable) +
           ": set it above 0 and below 1. It is the share of each span that copies to host memory may fill");
  if (!(request.link.bytes_per_s > 0) || !std::isfinite(request.link.bytes_per_s))
    refuse("link.bytes_per_s is " + std::to_string(request.link.bytes_per_s) +
           ": set it to the bandwidth of a copy, finite and above 0");
  if (!(request.link.startup_s >= 0) || !std::isfinite(request.link.startup_s))
    refuse("link.startup_s is " + std::to_string(request.link.startup_s) +
           ": set it to the start-up time of a copy in seconds, finite and 0 or more");
  for (const DeviceSpan& span : request.spans)
    if (!(span.length_s >= 0) || !std::isfinite(span.length_s))
      refuse("the length_s of a span is " + std::to_string(span.length_s) + ": set it to a finite number, 0 or more");
}

class Planner {
 public:
  explicit Planner(const CopyRequest& request) : request_(request) {}

  // Places copies into all spans of one kind. Returns how many bytes they have.
  std::uint64_t layer(DeviceActivity activity) {
    const std::uint64_t before = placed_;
    for (std::uint32_t i = 0; i < request_.spans.size(); ++i)
      if (request_.spans[i].activity == activity) fill(i, request_.usable * request_.spans[i].length_s);
    return placed_ - before;
  }
  double rest() {
    double time_s = 0;
    while (left() != 0) {
      const std::uint64_t size = std::min(left(), request_.chunk_bytes);
      time_s += request_.link.time_s(size);
      place(static_cast<std::uint32_t>(request_.spans.size()), size);
    }
    return time_s;
  }
  std::vector<PlannedCopy> copies;

 private:
  std::uint64_t left() const { return request_.state_bytes - placed_; }
  void place(std::uint32_t span, std::uint64_t size_bytes) {
    copies.push_back({span, placed_, size_bytes});
    placed_ += size_bytes;
  }
  void fill(std::uint32_t span, double left_s) {
    while (left() != 0) {
      const double fits = (left_s - request_.link.startup_s) * request_.link.bytes_per_s;
      if (fits < 1) return;
      const std::uint64_t most = std::min(left(), request_.chunk_bytes);
      const std::uint64_t size = fits < static_cast<double>(most) ? static_cast<std::uint64_t>(fits) : most;
      left_s -= request_.link.time_s(size);
      place(span, size);
    }
  }

  const CopyRequest& request_;
  std::uint64_t placed_ = 0;
};

}  // namespace

CopyPlan plan_copies(const CopyRequest& request) {
  check(request);
  Planner planner(request);
  CopyPlan plan;
  plan.bubble_bytes = planner.layer(DeviceActivity::bubble);
  plan.compute_bytes = planner.layer(DeviceActivity::compute);
  if (request.separate_paths) plan.communicate_bytes = planner.layer(DeviceActivity::communicate);
  plan.overrun_s = planner.rest();
  plan.copies = std::move(planner.copies);
  return plan;
}

double bubble_time_1f1b_s(std::uint32_t stage, std::uint32_t stages, double pass_s) {
  if (stage >= stages)
    throw std::invalid_argument("there is no stage " + std::to_string(stage) + " in a pipeline of " +
                                std::to_string(stages) + " stages: stages are numbered from 0");
  if (!(pass_s >= 0) || !std::isfinite(pass_s))
    throw std::invalid_argument("pass_s is " + std::to_string(pass_s) + ": set it to a finite number, 0 or more");
  const double p = stage, all = stages;
  return std::max(0.0, (0.8 * p + 2 * all - p - 2) * pass_s);
}

}  // namespace ckpt::schedule
