// Declares the inner loops that copy, digest, encode and decode. They work on stripes of 64 bytes. Each instruction set
// has its own loops, in its own source file. stripe_loops(Isa) and combine_loop(Isa) choose among them. Internal to
// kernels/.
#pragma once

#include "kernels/combine_loops.hpp"
#include "kernels/leaf_hasher.hpp"

namespace ckpt::kernels {

// How far ahead the loops prefetch: enough for the latency of memory at 10 GB/s. To prefetch beyond the end of a source
// is harmless.
inline constexpr std::size_t prefetch_distance_bytes = 1536;

extern const StripeLoops portable_loops;
extern const CombineLoop portable_combine;
#if defined(__x86_64__)
extern const StripeLoops avx2_loops;
extern const StripeLoops avx512_loops;
extern const CombineLoop avx2_combine;
extern const CombineLoop avx512_combine;  // also needs GFNI and AVX512BW
#endif

}  // namespace ckpt::kernels
