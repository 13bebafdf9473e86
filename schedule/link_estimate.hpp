// What the link takes for a chunk, from chunks that were sent: f(s) = startup_s + s / bytes_per_s by least squares, old
// chunks counting less and less. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "schedule/plan.hpp"

namespace ckpt::schedule {

class LinkEstimate {
 public:
  // A chunk that had the link for itself. Without effect for a size of 0 or a time that is not above 0.
  void add(std::uint64_t size_bytes, double time_s);

  // Nothing before the first few chunks. Where sizes hardly differ, or the fit makes no sense, all of the time goes to
  // the bytes: chunks of that size are foretold right all the same.
  std::optional<LinkModel> link() const;

 private:
  static constexpr double keep = 0.95;  // of the weight of all before, with each chunk
  static constexpr std::uint32_t least_chunks = 4;

  std::uint32_t chunks_ = 0;  // up to least_chunks
  double weight_ = 0;
  double sizes_ = 0, times_ = 0;  // weighted sums
  double sizes_squared_ = 0, products_ = 0;
};

}  // namespace ckpt::schedule
