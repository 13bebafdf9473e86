// CheckpointId names a checkpoint by (incarnation, iteration). It packs both numbers into one 64-bit word, so that
// shared memory can name a checkpoint in one atomic word. A newer checkpoint has a larger word.
#pragma once

#include <compare>
#include <cstdint>

namespace ckpt {

class CheckpointId {
 public:
  static constexpr int iteration_bits = 40;
  static constexpr std::int64_t iteration_max = (std::int64_t{1} << iteration_bits) - 1;
  static constexpr std::uint64_t incarnation_max = (std::uint64_t{1} << (64 - iteration_bits)) - 1;

  constexpr CheckpointId() = default;  // "no checkpoint"; compares as older than all, because incarnations begin at 1
  constexpr CheckpointId(std::uint64_t incarnation, std::int64_t iteration)
      : word_((incarnation << iteration_bits) | static_cast<std::uint64_t>(iteration)) {}
  static constexpr CheckpointId from_word(std::uint64_t word) {
    CheckpointId checkpoint;
    checkpoint.word_ = word;
    return checkpoint;
  }

  constexpr std::uint64_t word() const { return word_; }
  constexpr std::uint64_t incarnation() const { return word_ >> iteration_bits; }
  constexpr std::int64_t iteration() const { return static_cast<std::int64_t>(word_ & std::uint64_t{iteration_max}); }
  constexpr explicit operator bool() const { return word_ != 0; }  // false: "no checkpoint"
  constexpr auto operator<=>(const CheckpointId&) const = default;

 private:
  std::uint64_t word_ = 0;
};

}  // namespace ckpt
