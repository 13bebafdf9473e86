#include "schedule/link_estimate.hpp"

#include <algorithm>
#include <cmath>

namespace ckpt::schedule {

void LinkEstimate::add(std::uint64_t size_bytes, double time_s) {
  if (size_bytes == 0 || !(time_s > 0) || !std::isfinite(time_s)) return;
  const auto size = static_cast<double>(size_bytes);
  chunks_ = std::min(chunks_ + 1, least_chunks);
  weight_ = keep * weight_ + 1;
  sizes_ = keep * sizes_ + size;
  times_ = keep * times_ + time_s;
  sizes_squared_ = keep * sizes_squared_ + size * size;
  products_ = keep * products_ + size * time_s;
}

std::optional<LinkModel> LinkEstimate::link() const {
  if (chunks_ < least_chunks) return std::nullopt;
  constexpr double least_spread = 0.01;  // as a share of the mean size
  const double mean_size = sizes_ / weight_, mean_time = times_ / weight_;
  const double variance = sizes_squared_ / weight_ - mean_size * mean_size;
  const double covariance = products_ / weight_ - mean_size * mean_time;
  const double slope = variance > 0 ? covariance / variance : 0;
  const double startup_s = mean_time - slope * mean_size;
  const bool fits = variance > std::pow(least_spread * mean_size, 2) && slope > 0 && startup_s >= 0;
  return fits ? LinkModel{startup_s, 1 / slope} : LinkModel{0, mean_size / mean_time};
}

}  // namespace ckpt::schedule
