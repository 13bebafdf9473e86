// LinkEstimate learns how long a chunk takes to send, from chunks that were sent. It fits f(s) = startup_s + s /
// bytes_per_s by least squares. Older chunks count less and less. No clock, no I/O.
#pragma once

#include <cstdint>
#include <optional>

#include "schedule/plan.hpp"

namespace ckpt::schedule {

class LinkEstimate {
 public:
  // Adds a chunk that had the link to itself. Ignored if the size is 0 or the time is not above 0.
  void add(std::uint64_t size_bytes, double time_s);

  // None until there are a few chunks. If sizes hardly differ or the fit makes no sense, the bytes account for all of
  // the time. The forecast for chunks of that size is still right.
  std::optional<LinkModel> link() const;

 private:
  static constexpr double keep = 0.95;  // each chunk multiplies the weight of all earlier ones by this
  static constexpr std::uint32_t least_chunks = 4;

  std::uint32_t chunks_ = 0;  // up to least_chunks
  double weight_ = 0;
  double sizes_ = 0, times_ = 0;  // weighted sums
  double sizes_squared_ = 0, products_ = 0;
};

}  // namespace ckpt::schedule
