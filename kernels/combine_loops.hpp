// The inner loop of Coder: sums of sources times coefficients over GF(2^8), with the digests of what is read and
// written in the same pass. It exists once per instruction set (stripe_loops.hpp). Internal to kernels/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/isa.hpp"
#include "kernels/leaf_hasher.hpp"

namespace ckpt::kernels {

// A coefficient, in the forms that the instruction sets multiply by.
struct Factor {
  alignas(16) std::uint8_t low[16];   // [i] = coefficient * i
  alignas(16) std::uint8_t high[16];  // [i] = coefficient * 16 i
  std::uint64_t matrix;               // over GF(2), row by row, as gf2p8affineqb takes it
  std::uint8_t value;
};
Factor make_factor(std::uint8_t coefficient);

struct StripeSource {
  const std::byte* data;
  std::uint64_t* accumulators;  // of the source's leaf; null: the source is not digested
  const Factor* factors;        // factors[row * factor_stride]; unused if the job does not multiply
};
struct StripeOutput {
  std::byte* data;
  std::uint64_t* accumulators;  // of the output's leaf; null: the output is not digested
  bool streaming;               // stores go past the caches; data is 64-byte aligned
};

// What one call of the loop computes. Output r is the sum over all sources of factor (r, source) * source, plus output
// r itself if `to_sum`. All sources and outputs are taken at the same offset. The loop reads a stripe of every source
// before it writes that stripe of any output.
struct StripeJob {
  std::span<const StripeSource> sources;
  std::span<const StripeOutput> outputs;  // 1 to max_parity_rows
  std::size_t factor_stride;
  bool multiplying;  // false: one output, all factors are one
  bool to_sum;
};

// Combines `count` stripes. The first is number `first` of its leaf.
using CombineLoop = void (*)(const StripeJob& job, std::size_t first, std::size_t count);

// The loop of a supported `isa`, or of the next lower one if the processor lacks an instruction for multiplying.
CombineLoop combine_loop(Isa isa);

}  // namespace ckpt::kernels
