// What one GPU thread does to encode parity. The code also compiles for the host, so tests check its indexing without a
// GPU. The kernels of kernels/parity_cuda.hpp run it. Internal to kernels/.
//
// A vector is 16 aligned bytes of the first output. A block of threads takes a run of vectors, and each thread takes
// one or two of them. It computes these bytes, and the bytes at the same offsets of all other outputs.
//
// A source is *aligned* if it begins at the same offset from a 16-byte boundary as the first output. The job has the
// aligned sources first, the longest of them first. So those that have all bytes of a block of threads come first. The
// threads read these sources in groups, without any further check. All reads of a group are in flight together. All
// that is left over goes through load(), which checks each access: unaligned sources, sources that end within the
// block, and the blocks at both ends of the outputs. A thread never accesses a byte outside sources and outputs, not
// even in the same vector.
//
// Multiplying needs no table. Each row has eight sums, one for each bit of a coefficient. A source is added to the sums
// of those bits that its coefficient has. With x2 as doubling, the output is then
// sum[0] + x2(sum[1] + x2(sum[2] + ...)). So each source costs one masked addition per bit and row. Doublings cost once
// per output, not once per source. A row of ones is a plain sum, and needs one sum only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/erasure_code.hpp"
#include "kernels/launch.hpp"

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
  Source sources[max_stripe_pieces];  // the aligned ones first, the longest of them first
  std::uint8_t coefficients[max_parity_rows][max_stripe_pieces];
  unsigned char* outputs[max_parity_rows];
  std::uint64_t length_bytes;  // of each output
  std::uint32_t source_count;
  std::uint32_t aligned_count;  // so many of the sources are aligned
  bool to_sum;                  // true: the result is added to the bytes that the outputs have
};
static_assert(sizeof(ParityJob) <= 4096, "kernel arguments of every CUDA version are at most 4 KiB");

struct __attribute__((may_alias, aligned(16))) Vector {
  std::uint32_t words[4];
};

CKPT_ON_DEVICE std::size_t misalignment(const void* at) { return reinterpret_cast<std::uintptr_t>(at) % vector_bytes; }

// How many vectors the outputs have. The first vector may begin before the first output.
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
  // NOLINTNEXTLINE(clang-analyzer-core.uninitialized.UndefReturn): only whoever packs may have no packed bytes
  return *reinterpret_cast<const Vector*>(aligned);
}

// Reads a vector of global memory that nobody reads again soon. With other memory, the GPU refuses the instruction, and
// the context is lost. Caches give up its place first, and keep what training has there.
CKPT_ON_DEVICE Vector passing_vector_at(const unsigned char* aligned) {
#if defined(__CUDA_ARCH__)
  const uint4 words = __ldcs(reinterpret_cast<const uint4*>(aligned));
  return {{words.x, words.y, words.z, words.w}};
#else
  return vector_at(aligned);
#endif
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

// Writes a vector of global memory. With other memory, the GPU refuses the instruction, and the context is lost.
CKPT_ON_DEVICE void store_vector_at(unsigned char* aligned, const Vector& vector) {
#if defined(__CUDA_ARCH__)
  const std::uint32_t* const words = vector.words;
  __stwb(reinterpret_cast<uint4*>(aligned), make_uint4(words[0], words[1], words[2], words[3]));
#else
  *reinterpret_cast<Vector*>(aligned) = vector;
#endif
}

// Writes those bytes of `vector` to [at, at + 16) of `data` that are inside [0, size).
CKPT_ON_DEVICE void store(unsigned char* data, std::int64_t size, std::int64_t at, const Vector& vector) {
  if (at >= 0 && at + 16 <= size && misalignment(data + at) == 0) {
    store_vector_at(data + at, vector);
    return;
  }
  for (int i = 0; i < 16; ++i) {
    if (at + i < 0 || at + i >= size) continue;
    data[at + i] = static_cast<unsigned char>(vector.words[i / 4] >> (8 * (i % 4)));
  }
}

// Which outputs a job makes. `rows`: how many. `is_first_plain`: all coefficients of the first row are 1.
template <int row_count, bool has_plain_row>
struct Outputs {
  static constexpr int rows = row_count;
  static constexpr bool is_first_plain = has_plain_row;
  static constexpr int first_multiplied = is_first_plain ? 1 : 0;
};

// A group of sources is read at once. So many reads of each thread are in flight, and so many more while the group
// before is added.
inline constexpr unsigned sources_per_group = 4;

// The bytes of the outputs that a block of threads makes.
inline constexpr std::uint64_t parity_block_bytes = std::uint64_t{parity_threads_per_block} * vector_bytes;

// How many blocks of threads a job needs.
CKPT_ON_DEVICE std::uint64_t block_count(const ParityJob& job) {
  return (vector_count(job) + parity_threads_per_block - 1) / parity_threads_per_block;
}

// The sums of one vector of all outputs.
template <class Made>
struct ParitySums {
  Vector rows[Made::rows][8];  // a plain row has only the first
};

// Adds a vector of source number `source`.
template <class Made>
CKPT_ON_DEVICE void add_source(const ParityJob& job, ParitySums<Made>& sums, std::uint32_t source,
                               const Vector& vector) {
  if (Made::is_first_plain) add(sums.rows[0][0], vector);
  CKPT_UNROLL
  for (int row = Made::first_multiplied; row < Made::rows; ++row) {
    const std::uint32_t coefficient = job.coefficients[row][source];
    CKPT_UNROLL
    for (int bit = 0; bit < 8; ++bit) add_masked(sums.rows[row][bit], vector, 0U - (coefficient >> bit & 1U));
  }
}

// The vectors of `count` sources at the same offset.
template <unsigned count>
struct Group {
  Vector vectors[count];
};

// Reads from sources number `first` and after, at offset `at`. All are aligned, and have these bytes.
template <unsigned count>
CKPT_ON_DEVICE Group<count> read_group(const ParityJob& job, std::uint32_t first, std::int64_t at) {
  Group<count> group;
  CKPT_UNROLL
  for (unsigned i = 0; i < count; ++i) group.vectors[i] = passing_vector_at(job.sources[first + i].data + at);
  return group;
}

template <class Made, unsigned count>
CKPT_ON_DEVICE void add_group(const ParityJob& job, ParitySums<Made>& sums, std::uint32_t first,
                              const Group<count>& group) {
  CKPT_UNROLL
  for (unsigned i = 0; i < count; ++i) add_source(job, sums, first + i, group.vectors[i]);
}

// Adds those first sources that have all bytes of the block, and returns how many these are. `at`: the offset of the
// thread's vector. `end`: where the block ends.
template <class Made>
CKPT_ON_DEVICE std::uint32_t add_whole_sources(const ParityJob& job, ParitySums<Made>& sums, std::int64_t at,
                                               std::int64_t end) {
  const auto is_whole = [&](std::uint32_t source) {
    return source < job.aligned_count && static_cast<std::int64_t>(job.sources[source].size_bytes) >= end;
  };
  std::uint32_t next = 0;
  if (is_whole(sources_per_group - 1)) {
    Group<sources_per_group> group = read_group<sources_per_group>(job, 0, at);
    for (;;) {
      const bool has_more = is_whole(next + 2 * sources_per_group - 1);
      Group<sources_per_group> ahead = group;
      if (has_more) ahead = read_group<sources_per_group>(job, next + sources_per_group, at);
      add_group(job, sums, next, group);
      next += sources_per_group;
      if (!has_more) break;
      group = ahead;
    }
  }
  static_assert(sources_per_group == 4);
  if (is_whole(next + 2)) {
    add_group(job, sums, next, read_group<3>(job, next, at));
    return next + 3;
  }
  if (is_whole(next + 1)) {
    add_group(job, sums, next, read_group<2>(job, next, at));
    return next + 2;
  }
  if (!is_whole(next)) return next;
  add_group(job, sums, next, read_group<1>(job, next, at));
  return next + 1;
}

// Turns the sums of a row into the row's vector.
template <class Made>
CKPT_ON_DEVICE Vector row_of(const ParitySums<Made>& sums, int row) {
  if (row < Made::first_multiplied) return sums.rows[row][0];
  Vector product = sums.rows[row][7];
  CKPT_UNROLL
  for (int bit = 6; bit >= 0; --bit) {
    times_two(product);
    add(product, sums.rows[row][bit]);
  }
  return product;
}

// What a thread of a block does. `Made`: some Outputs.
template <class Made>
CKPT_ON_DEVICE void encode_vector(const ParityJob& job, std::uint64_t block, unsigned thread) {
  // Offsets from the first byte of the outputs. The first block may begin before it.
  const auto length = static_cast<std::int64_t>(job.length_bytes);
  const std::int64_t begin =
      static_cast<std::int64_t>(block * parity_block_bytes) - static_cast<std::int64_t>(misalignment(job.outputs[0]));
  const std::int64_t end = begin + static_cast<std::int64_t>(parity_block_bytes);
  const std::int64_t at = begin + static_cast<std::int64_t>(thread * vector_bytes);
  ParitySums<Made> sums{};
  std::uint32_t source = begin >= 0 && end <= length ? add_whole_sources(job, sums, at, end) : 0;
  for (; source < job.source_count; ++source) {
    const auto size = static_cast<std::int64_t>(job.sources[source].size_bytes);
    if (size > begin) add_source(job, sums, source, load(job.sources[source].data, size, at));
  }
  CKPT_UNROLL
  for (int row = 0; row < Made::rows; ++row) {
    Vector made = row_of(sums, row);
    if (job.to_sum) add(made, load(job.outputs[row], length, at));
    store(job.outputs[row], length, at, made);
  }
}

}  // namespace ckpt::kernels::device
