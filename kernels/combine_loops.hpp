// Declares the inner loop of Coder. The loop multiplies sources by coefficients over GF(2^8), adds up the products, and
// in the same pass digests the bytes that it reads and writes. Each instruction set has its own loop
// (stripe_loops.hpp). Here a stripe is 64 bytes of memory, not a stripe of a parity group. Internal to kernels/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/isa.hpp"
#include "kernels/leaf_hasher.hpp"

namespace ckpt::kernels {

// A coefficient, stored in all forms that the loops need: each instruction set multiplies in another way.
struct Factor {
  alignas(16) std::uint8_t low[16];   // low[i] = coefficient * i
  alignas(16) std::uint8_t high[16];  // high[i] = coefficient * 16 i
  std::uint64_t matrix;               // for the instruction gf2p8affineqb: the multiplication as a matrix over GF(2)
  std::uint8_t value;                 // the coefficient itself
};
Factor make_factor(std::uint8_t coefficient);

struct StripeSource {
  const std::byte* data;
  std::uint64_t* accumulators;  // XXH3's 8 accumulators for the source's leaf; null: the source is not digested
  const Factor* factors;        // for output r: factors[r * factor_stride]; unused if StripeJob::multiplying is false
};
struct StripeOutput {
  std::byte* data;
  std::uint64_t* accumulators;  // XXH3's 8 accumulators for the output's leaf; null: the output is not digested
  bool streaming;               // true: the loop stores past the caches; `data` must be 64-byte aligned
};

// What one call of the loop computes. Output r is the sum over all sources of factor (r, source) * source. If `to_sum`
// is true, the loop also adds the bytes that output r has before the call. At each offset, the loop reads the stripes
// of all sources before it writes a stripe of an output. So an output may be at the address of a source.
struct StripeJob {
  std::span<const StripeSource> sources;
  std::span<const StripeOutput> outputs;  // 1 to max_parity_rows
  std::size_t factor_stride;              // in StripeSource::factors, the distance between the factors of two outputs
  bool multiplying;                       // false: there is one output, and all factors are one
  bool to_sum;
};

// A loop of one instruction set. It computes `count` consecutive stripes of the job's outputs. The first one is stripe
// number `first` of its leaf.
using CombineLoop = void (*)(const StripeJob& job, std::size_t first, std::size_t count);

// Returns the loop of `isa`, which must be supported, or the loop of a lower instruction set if this processor lacks
// instructions that the loop of `isa` needs to multiply.
CombineLoop combine_loop(Isa isa);

}  // namespace ckpt::kernels
