#include "schedule/pacer.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ckpt::schedule {

namespace {

constexpr double least_share = 0.1;  // share of the time for which waiting pieces get the link

}  // namespace

Pacer::Pacer(const PacerOptions& options) : options_(options) {
  if (options.grain_bytes == 0) throw std::invalid_argument("grain_bytes is 0: set it to 1 or more");
  if (options.chunk_bytes < options.grain_bytes)
    throw std::invalid_argument("chunk_bytes is " + std::to_string(options.chunk_bytes) +
                                ": set it to at least grain_bytes, " + std::to_string(options.grain_bytes));
  if (!(options.chunk_s > 0))
    throw std::invalid_argument("chunk_s is " + std::to_string(options.chunk_s) + ": set it above 0");
  if (!(options.starvation_limit_s > 0))
    throw std::invalid_argument("starvation_limit_s is " + std::to_string(options.starvation_limit_s) +
                                ": set it above 0");
}

std::uint64_t Pacer::allow(double now_s, std::uint64_t left_bytes, std::size_t under_way,
                           const IdleForecast& idle_forecast, double iteration_s) {
  std::uint64_t most = std::min(options_.chunk_bytes, left_bytes);
  if (idle_forecast.state == NetworkState::free) {
    asked_s_ = -1;
    return most;
  }
  most = std::min(most, chunk_bytes());
  const double starvation_limit_s = std::max(options_.starvation_limit_s, 2 * iteration_s);
  note_waiting(now_s, starvation_limit_s);
  if (under_way != 0) return 0;
  const std::uint64_t fitting =
      idle_forecast.state == NetworkState::idle ? fitting_bytes(most, idle_forecast.idle_s) : 0;
  if (fitting != 0) {
    owed_s_ = std::max(0.0, owed_s_ - link_s(fitting));
    all_left_ = fitting == left_bytes;
    return fitting;
  }
  if (owed_s_ <= least_share * starvation_limit_s) return 0;
  forced_for_s_ = link_s(most);
  owed_s_ -= forced_for_s_;
  all_left_ = most == left_bytes;
  ++forced_;
  return most;
}

std::uint64_t Pacer::chunk_bytes() const {
  const auto link = estimate_.link();
  const double bytes = link ? options_.chunk_s * link->bytes_per_s : 0;
  if (bytes >= static_cast<double>(options_.chunk_bytes)) return options_.chunk_bytes;
  return std::max<std::uint64_t>(static_cast<std::uint64_t>(bytes) / options_.grain_bytes, 1) * options_.grain_bytes;
}

// A forced chunk may take longer than expected, because training communicates. The pieces then count as having had the
// link for all of that time.
void Pacer::received(std::uint64_t size_bytes, double time_s, bool undisturbed) {
  if (undisturbed) estimate_.add(size_bytes, time_s);
  if (forced_for_s_ == 0) return;
  owed_s_ -= std::max(0.0, std::min(time_s, options_.starvation_limit_s) - forced_for_s_);
  forced_for_s_ = 0;
}

// While pieces wait, allow() is called again and again. The time since the last call counts as waiting only if it is
// short. After a long gap, either no piece was left to send, or the caller could not call.
void Pacer::note_waiting(double now_s, double starvation_limit_s) {
  constexpr double pause_s = 0.1;
  const double gap_s = now_s - asked_s_;
  if (asked_s_ < 0 || gap_s > starvation_limit_s || (gap_s > pause_s && all_left_)) {
    owed_s_ = 0;
  } else if (gap_s <= pause_s) {
    owed_s_ += least_share * gap_s;
  }
  asked_s_ = now_s;
  all_left_ = false;
}

// How long a chunk takes on the link. Until the link is known, a tenth of starvation_limit_s.
double Pacer::link_s(std::uint64_t size_bytes) const {
  const auto link = estimate_.link();
  return link ? link->time_s(size_bytes) : least_share * options_.starvation_limit_s;
}

std::uint64_t Pacer::fitting_bytes(std::uint64_t left_bytes, double idle_s) const {
  const auto link = estimate_.link();
  if (!link) return idle_s > 0 ? left_bytes : 0;
  if (link->time_s(left_bytes) <= idle_s) return left_bytes;
  const double fits = (idle_s - link->startup_s) * link->bytes_per_s;
  if (fits < static_cast<double>(options_.grain_bytes)) return 0;
  return static_cast<std::uint64_t>(fits) / options_.grain_bytes * options_.grain_bytes;
}

}  // namespace ckpt::schedule
