// SourceLimit limits how often one address may connect to the listener: `burst` connections at once, and `per_s` per
// second in the long run. Its memory is fixed: it puts addresses into buckets by a hash with a secret seed, and the
// addresses in a bucket share a limit. Nobody outside knows the seed. So nobody can choose an address that shares a
// bucket with a certain other address and uses up its limit.
//
// Not thread-safe.
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "base/clock.hpp"

namespace ckpt::net {

class SourceLimit {
 public:
  SourceLimit(double burst, double per_s, std::uint64_t seed) : burst_(burst), per_s_(per_s), seed_(seed) {}

  // Returns whether `source` may connect once more, and counts the connection if so. `now` must not go back.
  bool admit(std::span<const std::byte> source, Clock::time_point now) {
    Bucket& bucket = buckets_[XXH3_64bits_withSeed(source.data(), source.size(), seed_) % buckets_.size()];
    const double regained = milliseconds_between(bucket.at, now) * per_s_ / 1000;
    bucket.used = std::max(bucket.used - regained, 0.0);
    bucket.at = now;
    if (bucket.used + 1 > burst_) return false;
    bucket.used += 1;
    return true;
  }

 private:
  struct Bucket {
    double used = 0;
    Clock::time_point at = {};
  };
  const double burst_;
  const double per_s_;
  const std::uint64_t seed_;
  std::array<Bucket, 4096> buckets_ = {};
};

}  // namespace ckpt::net
