// Linear combinations of stripes over GF(2^8), with the digests of what is read and written in the same pass (internal
// to kernels/). As with stripe_loops.hpp, the loop exists once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/isa.hpp"
#include "kernels/leaf_hasher.hpp"

namespace ckpt::kernels {

// A coefficient in the forms in which instruction sets multiply by it.
struct Factor {
  alignas(16) std::uint8_t low[16];   // [i] = coefficient * i
  alignas(16) std::uint8_t high[16];  // [i] = coefficient * 16 i
  std::uint64_t matrix;               // over GF(2), row by row, as gf2p8affineqb takes it
  std::uint8_t value;
};
Factor make_factor(std::uint8_t coefficient);

struct StripeSource {
  const std::byte* data;
  std::uint64_t* accumulators;  // of its leaf; null: not digested
  const Factor* factors;        // factors[row * factor_stride]; unused where the job does not multiply
};
struct StripeOutput {
  std::byte* data;
  std::uint64_t* accumulators;  // of its leaf; null: not digested
  bool streaming;               // past the caches; data is 64-byte aligned
};

// Output r = (itself, if it is a sum already) + the sum over all sources of factor (r, source) * source. Stripes are
// taken at the same offset of all; each is read whole before any output of it is written.
struct StripeJob {
  std::span<const StripeSource> sources;
  std::span<const StripeOutput> outputs;  // 1 to max_parity_rows
  std::size_t factor_stride;
  bool multiplying;  // false: one output, all factors are one
  bool to_sum;
};

// `count` stripes; the first is number `first` of its leaf.
using CombineLoop = void (*)(const StripeJob& job, std::size_t first, std::size_t count);

// Of a supported `isa`, or of the next lower one where the processor lacks an instruction for multiplying.
CombineLoop combine_loop(Isa isa);

}  // namespace ckpt::kernels
