#include "schedule/pacer.hpp"

#include <algorithm>
#include <stdexcept>

namespace ckpt::schedule {

namespace {

constexpr double forced_share = 0.1;  // of the link, for what starves

}  // namespace

Pacer::Pacer(const PacerOptions& options) : options_(options) {
  if (options.grain_bytes == 0 || options.chunk_bytes < options.grain_bytes || !(options.patience_s > 0))
    throw std::invalid_argument("a chunk has at least one grain, a grain at least one byte, and patience is above 0");
}

std::uint64_t Pacer::allow(double now_s, std::uint64_t left_bytes, std::size_t under_way, const Outlook& outlook,
                           double iteration_s) {
  const std::uint64_t most = std::min(options_.chunk_bytes, left_bytes);
  switch (outlook.state) {
    case NetworkState::free:
      waiting_since_s_.reset();
      return most;
    case NetworkState::learning:
      waiting_since_s_.reset();
      return 0;
    case NetworkState::busy:
      break;
    case NetworkState::idle:
      if (under_way != 0) return 0;
      if (const std::uint64_t bytes = fitting_bytes(most, outlook.idle_s); bytes != 0) {
        waiting_since_s_.reset();
        return bytes;
      }
  }
  return under_way == 0 ? force(now_s, most, iteration_s) : 0;
}

// Before the link is known, chunks are small.
std::uint64_t Pacer::fitting_bytes(std::uint64_t left_bytes, double idle_s) const {
  const auto link = estimate_.link();
  const std::uint64_t most = link ? left_bytes : std::min(options_.grain_bytes, left_bytes);
  if (!link) return idle_s > 0 ? most : 0;
  if (link->time_s(most) <= idle_s) return most;
  const double fits = (idle_s - link->startup_s) * link->bytes_per_s;
  if (fits < static_cast<double>(options_.grain_bytes)) return 0;
  return static_cast<std::uint64_t>(fits) / options_.grain_bytes * options_.grain_bytes;
}

std::uint64_t Pacer::force(double now_s, std::uint64_t left_bytes, double iteration_s) {
  if (!waiting_since_s_) waiting_since_s_ = now_s;
  if (now_s - *waiting_since_s_ <= std::max(options_.patience_s, 2 * iteration_s) || now_s < next_forced_s_) return 0;
  const auto link = estimate_.link();
  const std::uint64_t bytes = link ? left_bytes : std::min(options_.grain_bytes, left_bytes);
  next_forced_s_ = now_s + (link ? link->time_s(bytes) / forced_share : options_.patience_s);
  ++forced_;
  return bytes;
}

}  // namespace ckpt::schedule
