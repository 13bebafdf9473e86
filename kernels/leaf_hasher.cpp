#include "kernels/leaf_hasher.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/stripe_loops.hpp"

namespace ckpt::kernels {

namespace {

__extension__ using Wide = unsigned __int128;

std::uint64_t multiply_fold(std::uint64_t a, std::uint64_t b) {
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t avalanche(std::uint64_t hash) {
  hash ^= hash >> 37;
  hash *= 0x165667919E3779F9U;
  return hash ^ (hash >> 32);
}

}  // namespace

std::uint64_t LeafHasher::finish(const std::byte* last_stripe, std::size_t size_bytes) {
  accumulate_words(accumulators, last_stripe, secret + last_secret_offset);
  std::uint64_t hash = size_bytes * prime64_1;
  for (std::size_t i = 0; i < 8; i += 2) {
    const unsigned char* key = secret + merge_secret_offset + 8 * i;
    hash += multiply_fold(accumulators[i] ^ load_word(key), accumulators[i + 1] ^ load_word(key + 8));
  }
  return avalanche(hash);
}

const StripeLoops& stripe_loops(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return avx512_loops;
  if (isa == Isa::avx2) return avx2_loops;
#endif
  static_cast<void>(isa);
  return portable_loops;
}

void streaming_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace ckpt::kernels
