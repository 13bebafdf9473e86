// What one GPU thread does to encode parity. The code also compiles for the host, so tests check its indexing without a
// GPU. The kernels of kernels/parity_cuda.hpp run it. Internal to kernels/.
//
// A vector is 16 aligned bytes. Each thread takes one vector of the first output. It computes these 16 bytes, and the
// bytes at the same offsets of all other outputs. It reads a source in vectors. If a source is aligned differently, the
// thread reads two vectors. The second one is also the first one of the next thread, so it is in the cache. At the ends
// of sources and outputs, the thread accesses single bytes. It never accesses a byte outside them, not even in the same
// vector.
//
// Multiplying needs no table. Each row has eight sums, one for each bit of a coefficient. A source is added to the sums
// of those bits that its coefficient has. With x2 as doubling, the output is then
// sum[0] + x2(sum[1] + x2(sum[2] + ...)). So each source costs one masked addition per bit and row. Doublings cost once
// per output, not once per source.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/erasure_code.hpp"

#if defined(__CUDACC__)
#define CKPT_ON_DEVICE __host__ __device__ __forceinline__
#else
#define CKPT_ON_DEVICE inline
#endif
#if defined(__CUDA_ARCH__)
#define CKPT_UNROLL _Pragma("unroll")
#else
#define CKPT_UNROLL
#endif

namespace ckpt::kernels::device {

inline constexpr std::size_t vector_bytes = 16;

// The arguments of one launch. The kernel gets them by value, so nothing is allocated for them.
struct ParityJob {
  struct Source {
    const unsigned char* data;
    std::uint64_t size_bytes;  // from this byte on, the source counts as zeros
  };
  Source sources[max_stripe_pieces];
  std::uint8_t coefficients[max_parity_rows][max_stripe_pieces];
  unsigned char* outputs[max_parity_rows];
  std::uint64_t length_bytes;  // of each output
  std::uint32_t source_count;
  bool to_sum;  // true: the result is added to the bytes that the outputs have
};
static_assert(sizeof(ParityJob) <= 4096, "kernel arguments of every CUDA version are at most 4 KiB");

struct __attribute__((may_alias, aligned(16))) Vector {
  std::uint32_t words[4];
};

CKPT_ON_DEVICE std::size_t misalignment(const void* at) { return reinterpret_cast<std::uintptr_t>(at) % vector_bytes; }

// How many threads a job needs: one for each vector of the first output. The first vector may begin before the output.
CKPT_ON_DEVICE std::uint64_t vector_count(const ParityJob& job) {
  if (job.length_bytes == 0) return 0;
  return (job.length_bytes + misalignment(job.outputs[0]) + vector_bytes - 1) / vector_bytes;
}

CKPT_ON_DEVICE void add(Vector& sum, const Vector& vector) {
  CKPT_UNROLL
  for (int i = 0; i < 4; ++i) sum.words[i] ^= vector.words[i];
}

CKPT_ON_DEVICE void add_masked(Vector& sum, const Vector& vector, std::uint32_t mask) {
  CKPT_UNROLL
  for (int i = 0; i < 4; ++i) sum.words[i] ^= vector.words[i] & mask;
}

// Doubles each byte modulo x^8 + x^4 + x^3 + x^2 + 1.
CKPT_ON_DEVICE void times_two(Vector& vector) {
  CKPT_UNROLL
  for (std::uint32_t& word : vector.words) {
    word = ((word & 0x7F7F7F7FU) << 1) ^ (((word >> 7) & 0x01010101U) * 0x1DU);
  }
}

CKPT_ON_DEVICE std::uint64_t wide(std::uint32_t low, std::uint32_t high) {
  return low | static_cast<std::uint64_t>(high) << 32;
}

// Returns 64 bits of `high` and `low` put together, from bit `shift` of `low` on. `shift` must be below 64.
CKPT_ON_DEVICE std::uint64_t funnel(std::uint64_t low, std::uint64_t high, unsigned shift) {
  return shift == 0 ? low : low >> shift | high << (64 - shift);
}

// Returns the 16 bytes that begin `skip` < 16 bytes into the first of two adjacent vectors.
CKPT_ON_DEVICE Vector straddling(const Vector& first, const Vector& second, unsigned skip) {
  const std::uint64_t a = wide(first.words[0], first.words[1]), b = wide(first.words[2], first.words[3]);
  const std::uint64_t c = wide(second.words[0], second.words[1]), d = wide(second.words[2], second.words[3]);
  const bool far = skip >= 8;
  const unsigned shift = 8 * (skip % 8);
  const std::uint64_t low = funnel(far ? b : a, far ? c : b, shift);
  const std::uint64_t high = funnel(far ? c : b, far ? d : c, shift);
  return {{static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32), static_cast<std::uint32_t>(high),
           static_cast<std::uint32_t>(high >> 32)}};
}

CKPT_ON_DEVICE const Vector& vector_at(const unsigned char* aligned) {
  return *reinterpret_cast<const Vector*>(aligned);
}

// Returns bytes [at, at + 16) of `data`, with zeros for those outside [0, size). `at` may be negative.
CKPT_ON_DEVICE Vector gather(const unsigned char* data, std::int64_t size, std::int64_t at) {
  Vector vector{};
  for (int i = 0; i < 16; ++i) {
    if (at + i < 0 || at + i >= size) continue;
    vector.words[i / 4] |= static_cast<std::uint32_t>(data[at + i]) << (8 * (i % 4));
  }
  return vector;
}

// Returns what gather() returns, but reads whole aligned vectors where that is possible.
CKPT_ON_DEVICE Vector load(const unsigned char* data, std::int64_t size, std::int64_t at) {
  if (at < 0 || at + 16 > size) return gather(data, size, at);
  const auto skip = static_cast<std::int64_t>(misalignment(data + at));
  if (skip == 0) return vector_at(data + at);
  if (at < skip || at - skip + 32 > size) return gather(data, size, at);
  const unsigned char* aligned = data + at - skip;
  return straddling(vector_at(aligned), vector_at(aligned + vector_bytes), static_cast<unsigned>(skip));
}

// Writes those bytes of `vector` to [at, at + 16) of `data` that are inside [0, size).
CKPT_ON_DEVICE void store(unsigned char* data, std::int64_t size, std::int64_t at, const Vector& vector) {
  if (at >= 0 && at + 16 <= size && misalignment(data + at) == 0) {
    *reinterpret_cast<Vector*>(data + at) = vector;
    return;
  }
  for (int i = 0; i < 16; ++i) {
    if (at + i < 0 || at + i >= size) continue;
    data[at + i] = static_cast<unsigned char>(vector.words[i / 4] >> (8 * (i % 4)));
  }
}

// Where vector number `index` begins, counted from the first byte of the outputs. Negative if it begins before them.
CKPT_ON_DEVICE std::int64_t begin_of(const ParityJob& job, std::uint64_t index) {
  return static_cast<std::int64_t>(index * vector_bytes) - static_cast<std::int64_t>(misalignment(job.outputs[0]));
}

CKPT_ON_DEVICE void xor_vector(const ParityJob& job, std::uint64_t index) {
  const std::int64_t at = begin_of(job, index), length = static_cast<std::int64_t>(job.length_bytes);
  Vector sum{};
  if (job.to_sum) sum = load(job.outputs[0], length, at);
  for (std::uint32_t i = 0; i < job.source_count; ++i) {
    add(sum, load(job.sources[i].data, static_cast<std::int64_t>(job.sources[i].size_bytes), at));
  }
  store(job.outputs[0], length, at, sum);
}

template <int rows>
CKPT_ON_DEVICE void multiply_vector(const ParityJob& job, std::uint64_t index) {
  const std::int64_t at = begin_of(job, index), length = static_cast<std::int64_t>(job.length_bytes);
  Vector sums[rows][8] = {};
  for (std::uint32_t i = 0; i < job.source_count; ++i) {
    const Vector vector = load(job.sources[i].data, static_cast<std::int64_t>(job.sources[i].size_bytes), at);
    CKPT_UNROLL
    for (int row = 0; row < rows; ++row) {
      const std::uint32_t coefficient = job.coefficients[row][i];
      if (coefficient == 1) {  // all threads take the same branch
        add(sums[row][0], vector);
        continue;
      }
      CKPT_UNROLL
      for (int bit = 0; bit < 8; ++bit) add_masked(sums[row][bit], vector, 0U - (coefficient >> bit & 1U));
    }
  }
  CKPT_UNROLL
  for (int row = 0; row < rows; ++row) {
    Vector product = sums[row][7];
    CKPT_UNROLL
    for (int bit = 6; bit >= 0; --bit) {
      times_two(product);
      add(product, sums[row][bit]);
    }
    if (job.to_sum) add(product, load(job.outputs[row], length, at));
    store(job.outputs[row], length, at, product);
  }
}

}  // namespace ckpt::kernels::device
