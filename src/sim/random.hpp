// Random draws all random numbers of the simulator (splitmix64). Unlike the distributions of std, it gives the same
// numbers on every machine and with every library. A copied Random gives the same further numbers as the original. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace ckpt::sim {

constexpr std::uint64_t scramble(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

// Mixes two numbers into one. The order matters: mix(a, b) != mix(b, a).
constexpr std::uint64_t mix(std::uint64_t left, std::uint64_t right) {
  return scramble(scramble(left + 0x9e3779b97f4a7c15ull) ^ right);
}

constexpr std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return scramble(hash);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(scramble(seed + 1)) {}

  std::uint64_t next() { return scramble(state_ += 0x9e3779b97f4a7c15ull); }

  // Draws a number from 0 to bound - 1. `bound` must be above 0, and far below 2^64, so that the bias of the remainder
  // does not matter.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }

  // Draws a number from `low` to `high`, both included.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(high - low) + 1));
  }

  bool chance(unsigned per_mille) { return below(1000) < per_mille; }

  // Draws an element of `list`, which must not be empty.
  template <class Value>
  const Value& pick(const std::vector<Value>& list) {
    return list[below(list.size())];
  }

  template <class Value>
  void shuffle(std::vector<Value>& list) {
    for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[below(i)]);
  }

 private:
  std::uint64_t state_;
};

}  // namespace ckpt::sim
