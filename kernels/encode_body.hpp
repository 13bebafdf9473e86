// What a block of GPU threads does to make one leaf of parity from leaves of up to 63 sources, and to digest all of
// them. The code also compiles for the host, so tests need no GPU. The kernels of capture_kernels.cu run it. Internal
// to kernels/.
//
// Each byte of a source is read once. While a thread has a vector in registers, it adds the vector to XXH3's sums, as
// packing does (kernels/pack_body.hpp), and to its part of the parity leaf. So whoever compares the digests knows which
// bytes the parity was made from. The parity leaf stays in registers until all sources are added. Then the threads
// digest and store it.
#pragma once

#include "kernels/pack_body.hpp"

namespace ckpt::kernels::device {

// The arguments of one launch. The kernels get them by value.
struct EncodeJob {
  struct Source {
    const unsigned char* data;  // 16-byte aligned, and readable up to the end of its last whole leaf
    std::uint64_t size_bytes;   // from this byte on, the source counts as zeros
  };
  Source sources[max_stripe_pieces - 1];
  std::uint8_t coefficients[max_stripe_pieces - 1];  // of each source; not used if all of them are 1
  std::uint32_t source_count;
  unsigned char* parity;   // 16-byte aligned; whole leaves, one for each block of threads
  std::uint64_t* digests;  // for each leaf: of each source's leaf, 0 if the source has ended; then of the parity leaf
  DigestKeys keys;
};
static_assert(sizeof(EncodeJob) <= 4096, "kernel arguments of every CUDA version are at most 4 KiB");

// A leaf of a source, or the parity leaf.
struct CodedLeaf {
  const unsigned char* data;
  std::uint32_t size_bytes;  // 0: the source has ended before this leaf
  std::uint32_t coefficient;
};

CKPT_ON_DEVICE CodedLeaf source_leaf(const EncodeJob& job, std::uint32_t source, std::uint64_t index) {
  const std::uint64_t begin = index * leaf_size_bytes, size_bytes = job.sources[source].size_bytes;
  const std::uint64_t rest = size_bytes > begin ? size_bytes - begin : 0;
  return {job.sources[source].data + begin, static_cast<std::uint32_t>(rest < leaf_size_bytes ? rest : leaf_size_bytes),
          job.coefficients[source]};
}

CKPT_ON_DEVICE CodedLeaf parity_leaf(const EncodeJob& job, std::uint64_t index) {
  return {job.parity + index * leaf_size_bytes, static_cast<std::uint32_t>(leaf_size_bytes), 1};
}

inline constexpr unsigned rounds_per_warp = rounds_per_leaf / warps_per_block;
static_assert(rounds_per_warp % rounds_at_once == 0);

// The vectors of a leaf that one thread takes.
struct LeafPart {
  Vector vectors[rounds_per_warp][vectors_per_thread];
};

// Which vector of the leaf is number `i` of a thread in its warp's round number `turn`.
CKPT_ON_DEVICE unsigned vector_index(unsigned warp, unsigned thread, unsigned turn, unsigned i) {
  return (warp + turn * warps_per_block) * vectors_per_round + thread + i * threads_per_warp;
}

// Returns the vector with zeros for all bytes but the first `count`, which may be negative.
CKPT_ON_DEVICE Vector first_bytes(const Vector& vector, std::int64_t count) {
  Vector kept;
  CKPT_UNROLL
  for (int i = 0; i < 4; ++i) {
    const std::int64_t left = count - 4 * i;
    const std::uint32_t mask = left >= 4 ? ~0U : left <= 0 ? 0U : (1U << (8 * static_cast<unsigned>(left))) - 1;
    kept.words[i] = vector.words[i] & mask;
  }
  return kept;
}

CKPT_ON_DEVICE Vector multiplied(const Vector& vector, std::uint32_t coefficient) {
  Vector product{};
  CKPT_UNROLL
  for (int bit = 7; bit >= 0; --bit) {
    times_two(product);
    add_masked(product, vector, 0U - (coefficient >> bit & 1U));
  }
  return product;
}

// Keeps the compiler from moving reads behind the many instructions of multiplications.
CKPT_ON_DEVICE void begin_reads() {
#if defined(__CUDA_ARCH__)
  __syncwarp();
#endif
}

// Adds a vector of the leaf to a thread's sums of its round, unless it is in the leaf's last stripe.
CKPT_ON_DEVICE void add_to_sums(LanePair& sum, const Vector& vector, unsigned index, unsigned stripes,
                                const LanePair& keys) {
  if (index / vectors_per_stripe >= stripes) return;
  sum.even = accumulated(sum.even, vector, 0, keys.even);
  sum.odd = accumulated(sum.odd, vector, 1, keys.odd);
}

// Adds a thread's part of a leaf to its part of the parity leaf. Calls `put` with the thread's sums of each round.
template <bool is_plain, bool is_whole, class Put>
CKPT_ON_DEVICE void add_part(const CodedLeaf& leaf, const RoundKeys& keys, unsigned warp, unsigned thread,
                             LeafPart& parity, Put put) {
  const unsigned stripes = ((is_whole ? static_cast<unsigned>(leaf_size_bytes) : leaf.size_bytes) - 1) / stripe_bytes;
  CKPT_UNROLL
  for (unsigned begin = 0; begin < rounds_per_warp; begin += rounds_at_once) {
    Vector vectors[rounds_at_once][vectors_per_thread];
    CKPT_UNROLL
    for (unsigned turn = 0; turn < rounds_at_once; ++turn) {  // all reads first, so that they are in flight together
      CKPT_UNROLL
      for (unsigned i = 0; i < vectors_per_thread; ++i)
        vectors[turn][i] =
            passing_vector_at(leaf.data + std::size_t{vector_index(warp, thread, begin + turn, i)} * vector_bytes);
    }
    if (!is_plain) begin_reads();
    CKPT_UNROLL
    for (unsigned turn = 0; turn < rounds_at_once; ++turn) {
      LanePair sum{};
      CKPT_UNROLL
      for (unsigned i = 0; i < vectors_per_thread; ++i) {
        const unsigned index = vector_index(warp, thread, begin + turn, i);
        Vector vector = vectors[turn][i];
        if (!is_whole)
          vector = first_bytes(vector, std::int64_t{leaf.size_bytes} - static_cast<std::int64_t>(index * vector_bytes));
        add_to_sums(sum, vector, index, stripes, keys.of_vectors[i]);
        add(parity.vectors[begin + turn][i], is_plain ? vector : multiplied(vector, leaf.coefficient));
      }
      put(warp + (begin + turn) * warps_per_block, thread, sum);
    }
  }
}

// Stores a thread's part of the parity leaf. Calls `put` with the thread's sums of each round.
template <class Put>
CKPT_ON_DEVICE void store_part(unsigned char* parity, const RoundKeys& keys, unsigned warp, unsigned thread,
                               const LeafPart& part, Put put) {
  CKPT_UNROLL
  for (unsigned turn = 0; turn < rounds_per_warp; ++turn) {
    LanePair sum{};
    CKPT_UNROLL
    for (unsigned i = 0; i < vectors_per_thread; ++i) {
      const unsigned index = vector_index(warp, thread, turn, i);
      store_vector_at(parity + std::size_t{index} * vector_bytes, part.vectors[turn][i]);
      add_to_sums(sum, part.vectors[turn][i], index, leaf_size_bytes / stripe_bytes - 1, keys.of_vectors[i]);
    }
    put(warp + turn * warps_per_block, thread, sum);
  }
}

// Returns a lane's accumulator of a leaf of more than 240 bytes, once all of its rounds are summed up.
CKPT_ON_DEVICE std::uint64_t accumulator(const CodedLeaf& leaf, const DigestKeys& keys, const RoundSums& sums,
                                         unsigned lane) {
  const Vector last =
      load(leaf.data, leaf.size_bytes,
           std::int64_t{leaf.size_bytes} - stripe_bytes + static_cast<std::int64_t>(lane / 2 * vector_bytes));
  return accumulator((leaf.size_bytes - 1) / stripe_bytes, last, keys, sums, lane);
}

CKPT_ON_DEVICE std::uint64_t digest_short_leaf(const CodedLeaf& leaf, const DigestKeys& keys) {
  return ShortLeaf{keys, leaf.data, leaf.size_bytes}.digest();
}

// Does on the host what a block of threads does to leaf number `index`.
template <bool is_plain>
void encode_leaf_on_host(const EncodeJob& job, std::uint64_t index) {
  std::uint64_t* const digests = job.digests + index * (job.source_count + 1);
  LeafPart parts[warps_per_block][threads_per_warp] = {};
  const auto digest_of = [&](const CodedLeaf& leaf, auto take_part) {
    RoundSums sums{};
    const auto put = [&](unsigned round, unsigned thread, const LanePair& sum) {
      sums[round][thread % vectors_per_stripe * 2] += sum.even;
      sums[round][thread % vectors_per_stripe * 2 + 1] += sum.odd;
    };
    for (unsigned warp = 0; warp < warps_per_block; ++warp)
      for (unsigned thread = 0; thread < threads_per_warp; ++thread) take_part(warp, thread, put);
    if (leaf.size_bytes <= short_leaf_bytes) return digest_short_leaf(leaf, job.keys);
    std::uint64_t accumulators[lanes_per_leaf];
    for (unsigned lane = 0; lane < lanes_per_leaf; ++lane) accumulators[lane] = accumulator(leaf, job.keys, sums, lane);
    return merge_lanes(job.keys, accumulators, leaf.size_bytes);
  };
  for (std::uint32_t source = 0; source < job.source_count; ++source) {
    const CodedLeaf leaf = source_leaf(job, source, index);
    digests[source] = 0;
    if (leaf.size_bytes == 0) continue;
    digests[source] = digest_of(leaf, [&](unsigned warp, unsigned thread, const auto& put) {
      const RoundKeys keys = round_keys(job.keys.words, thread);
      if (leaf.size_bytes == leaf_size_bytes)
        add_part<is_plain, true>(leaf, keys, warp, thread, parts[warp][thread], put);
      else
        add_part<is_plain, false>(leaf, keys, warp, thread, parts[warp][thread], put);
    });
  }
  const CodedLeaf made = parity_leaf(job, index);
  digests[job.source_count] = digest_of(made, [&](unsigned warp, unsigned thread, const auto& put) {
    store_part(job.parity + index * leaf_size_bytes, round_keys(job.keys.words, thread), warp, thread,
               parts[warp][thread], put);
  });
}

}  // namespace ckpt::kernels::device
