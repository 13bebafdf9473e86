#include "schedule/plan.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace ckpt::schedule {

namespace {

constexpr double most_every = 100'000;  // iterations from one snapshot to the next; nobody takes them more rarely

[[noreturn]] void refuse(const std::string& sentence) { throw std::invalid_argument(sentence); }

bool is_time(double value) { return std::isfinite(value) && value >= 0; }

void check(const PlanRequest& request) {
  if (request.copies == 0) refuse("copies is 0, but a plan needs at least one; set it to 1 or more");
  if (request.buffers == 0) refuse("buffers is 0, but chunks need at least one sub-buffer; set it to 1 or more");
  if (request.reserved_bytes < request.buffers) {
    refuse(std::to_string(request.reserved_bytes) + " reserved bytes are too few for " +
           std::to_string(request.buffers) + " sub-buffers; reserve at least one byte for each");
  }
  if (request.least_bytes > request.reserved_bytes / request.buffers) {
    refuse("a chunk of at least " + std::to_string(request.least_bytes) + " bytes does not fit into a sub-buffer of " +
           std::to_string(request.reserved_bytes / request.buffers) + " bytes; reserve more");
  }
  if (!(request.usable > 0 && request.usable < 1)) {
    refuse("usable is " + std::to_string(request.usable) +
           ": set it above 0 and below 1. It is the share of each idle span that chunks may fill");
  }
  if (!std::isfinite(request.link.bytes_per_s) || request.link.bytes_per_s <= 0) {
    refuse("link.bytes_per_s is " + std::to_string(request.link.bytes_per_s) +
           ": set it to the bandwidth of the network, finite and above 0");
  }
  if (!is_time(request.link.startup_s)) {
    refuse("link.startup_s is " + std::to_string(request.link.startup_s) +
           ": set it to the start-up time of a chunk in seconds, finite and 0 or more");
  }
  for (std::size_t i = 0; i < request.spans_s.size(); ++i) {
    if (!is_time(request.spans_s[i])) {
      refuse("idle span " + std::to_string(i) + " is " + std::to_string(request.spans_s[i]) +
             " s long: give a finite number, 0 or more");
    }
  }
}

// How many whole bytes can be sent in that time.
std::uint64_t fitting_bytes(const LinkModel& link, double time_s, std::uint64_t most) {
  if (time_s >= link.time_s(most)) return most;
  const double fits = (time_s - link.startup_s) * link.bytes_per_s;
  return fits >= 1 ? std::min(most, static_cast<std::uint64_t>(fits)) : 0;
}

// Places the bytes of all copies into chunks, one copy after another.
class Filler {
 public:
  Filler(const PlanRequest& request, Plan& plan)
      : request_(request), plan_(plan), chunk_bytes_(request.reserved_bytes / request.buffers) {}

  bool is_done() const { return request_.checkpoint_bytes == 0 || copy_ + 1 >= request_.copies; }

  void fill(std::uint32_t span, double usable_s) {
    while (!is_done()) {
      const std::uint64_t size = fitting_bytes(request_.link, usable_s, next_bytes());
      if (size == 0 || size < std::min(request_.least_bytes, next_bytes())) return;
      usable_s -= add(span, size);
    }
  }
  void overrun() {
    while (!is_done()) plan_.overrun_s += add(static_cast<std::uint32_t>(request_.spans_s.size()), next_bytes());
  }

 private:
  std::uint64_t next_bytes() const { return std::min(chunk_bytes_, request_.checkpoint_bytes - first_byte_); }

  double add(std::uint32_t span, std::uint64_t size) {
    plan_.chunks.push_back({span, copy_, first_byte_, size});
    first_byte_ += size;
    if (first_byte_ == request_.checkpoint_bytes) {
      first_byte_ = 0;
      ++copy_;
    }
    const double time_s = request_.link.time_s(size);
    plan_.sent_s += time_s;
    return time_s;
  }

  const PlanRequest& request_;
  Plan& plan_;
  const std::uint64_t chunk_bytes_;
  std::uint32_t copy_ = 0;
  std::uint64_t first_byte_ = 0;
};

// True if all copies fit into the spans of so many iterations.
bool fits(const PlanRequest& request, std::uint32_t iterations) {
  Plan plan;
  Filler filler(request, plan);
  for (std::uint32_t i = 0; i < iterations && !filler.is_done(); ++i) {
    for (const double span_s : request.spans_s) filler.fill(0, request.usable * span_s);
  }
  return filler.is_done();
}

// Returns Plan::every. The estimate from one iteration is sometimes too small, because the last chunk of a copy is
// short and still has a start-up time. So this tries larger numbers until all copies fit.
std::uint32_t cadence(const PlanRequest& request) {
  PlanRequest endless = request;
  endless.checkpoint_bytes = request.checkpoint_bytes * (request.copies - 1);
  endless.copies = 2;
  Plan one;
  Filler filler(endless, one);
  for (const double span_s : request.spans_s) filler.fill(0, request.usable * span_s);
  double taken = 0;
  for (const PlannedChunk& chunk : one.chunks) taken += static_cast<double>(chunk.size_bytes);
  const double every = std::ceil(static_cast<double>(endless.checkpoint_bytes) / std::max(taken, 1.0));
  if (taken == 0 || every > most_every) return 0;
  auto iterations = static_cast<std::uint32_t>(every);
  while (!fits(request, iterations)) ++iterations;
  return iterations;
}

}  // namespace

Plan plan(const PlanRequest& request) {
  check(request);
  Plan plan;
  Filler filler(request, plan);
  for (std::size_t i = 0; i < request.spans_s.size() && !filler.is_done(); ++i) {
    filler.fill(static_cast<std::uint32_t>(i), request.usable * request.spans_s[i]);
  }
  filler.overrun();
  if (plan.overrun_s > 0) plan.every = cadence(request);
  return plan;
}

}  // namespace ckpt::schedule
