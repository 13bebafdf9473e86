// The faults that a test has asked the test double of NCCL for (control.h), and the double's counters: communicators,
// aborts, groups, bytes sent and so on. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace nccl_double {

inline constexpr int ranks_max = 64;

template <class T>
class PerRank {
 public:
  T operator[](int rank) const { return values_[static_cast<std::size_t>(rank)]; }
  void set(int rank, T value) {
    for (int i = 0; i < ranks_max; ++i)
      if (rank == -1 || rank == i) values_[static_cast<std::size_t>(i)] = value;
  }

 private:
  std::array<std::atomic<T>, ranks_max> values_{};
};

struct Faults {
  PerRank<bool> hangs, corrupts;
  PerRank<std::uint64_t> pause_us;
  PerRank<int> failure;
  std::atomic<bool> launches_held{false}, inits_held{false}, aborts_held{false};
  std::atomic<std::uint64_t> abort_pause_us{0};
  std::atomic<int> version{0};
};
inline Faults& faults() {
  static auto* const instance = new Faults;
  return *instance;
}

struct Counters {
  std::atomic<std::uint64_t> communicators{0}, aborts{0}, orphans{0}, groups{0}, sent_bytes{0}, mismatches{0},
      registered_bytes{0};
  std::atomic<int> max_ctas{0};
};
inline Counters& counters() {
  static auto* const instance = new Counters;
  return *instance;
}

}  // namespace nccl_double
