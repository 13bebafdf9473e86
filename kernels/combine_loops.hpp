// Declares the inner loop of Coder. It adds up sources times coefficients over GF(2^8), and in the same pass digests
// the bytes that it reads and writes. Each instruction set has its own (stripe_loops.hpp). Here a stripe is 64 bytes.
// Internal to kernels/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/isa.hpp"
#include "kernels/leaf_hasher.hpp"

namespace ckpt::kernels {

// A coefficient, in the forms in which the instruction sets multiply by it.
struct Factor {
  alignas(16) std::uint8_t low[16];   // low[i] = coefficient * i
  alignas(16) std::uint8_t high[16];  // high[i] = coefficient * 16 i
  std::uint64_t matrix;               // the multiplication as a matrix over GF(2), as gf2p8affineqb takes it
  std::uint8_t value;                 // the coefficient itself
};
Factor make_factor(std::uint8_t coefficient);

struct StripeSource {
  const std::byte* data;
  std::uint64_t* accumulators;  // 8 of XXH3, for the source's leaf; null: the source is not digested
  const Factor* factors;        // its factor for a row is factors[row * factor_stride]; unused without multiplying
};
struct StripeOutput {
  std::byte* data;
  std::uint64_t* accumulators;  // 8 of XXH3, for the output's leaf; null: the output is not digested
  bool streaming;               // true: data is 64-byte aligned, and stores go past the caches
};

// What one call of the loop computes. Output r is the sum over all sources of factor (r, source) * source. If `to_sum`,
// the bytes that output r has before are added as well. The loop reads a stripe of every source before it writes the
// stripe with the same offset of any output.
struct StripeJob {
  std::span<const StripeSource> sources;
  std::span<const StripeOutput> outputs;  // 1 to max_parity_rows
  std::size_t factor_stride;              // from the factor of one row to that of the next, in StripeSource::factors
  bool multiplying;                       // false: there is one output, and all factors are one
  bool to_sum;
};

// Combines `count` stripes. The first one is stripe number `first` of its leaf.
using CombineLoop = void (*)(const StripeJob& job, std::size_t first, std::size_t count);

// The loop of `isa`, which must be supported. If the processor lacks the instructions with which that loop multiplies,
// the loop of a lower instruction set.
CombineLoop combine_loop(Isa isa);

}  // namespace ckpt::kernels
