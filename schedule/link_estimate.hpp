// LinkEstimate learns from sent chunks how long a chunk takes to send. It fits f(size) = startup_s + size / bytes_per_s
// by least squares. Older chunks count less and less. No clock, no I/O. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>

#include "schedule/plan.hpp"

namespace ckpt::schedule {

class LinkEstimate {
 public:
  // Adds a chunk that was alone on the link. Ignores the chunk if its size is 0 or its time is not above 0.
  void add(std::uint64_t size_bytes, double time_s);

  // Returns startup_s and bytes_per_s as fitted, or none until four chunks were added. If all chunks have about the
  // same size, or the fit makes no sense, startup_s is 0 and bytes_per_s accounts for all of the time. For chunks of
  // about that size, the time is still right.
  std::optional<LinkModel> link() const;

 private:
  static constexpr double keep = 0.95;  // each chunk multiplies the weight of all earlier ones by this
  static constexpr std::uint32_t least_chunks = 4;

  std::uint32_t chunks_ = 0;  // up to least_chunks
  double weight_ = 0;         // sum of all chunks' weights
  // Weighted sums over the chunks: of size, of time, of size squared, and of size times time.
  double sizes_ = 0, times_ = 0;
  double sizes_squared_ = 0, products_ = 0;
};

}  // namespace ckpt::schedule
