// What a block of GPU threads does to pack one leaf of a piece, or to unpack it, and to digest the leaf on the way. The
// code also compiles for the host, so tests need no GPU. The kernels of capture_kernels.cu run it. Internal to
// kernels/.
//
// Each byte is read once: while a thread has a vector of 16 bytes in registers, it stores the vector and adds it to
// XXH3's sums. XXH3 has eight sums, one for each 8-byte word of a stripe of 64 bytes. The number of such a word, and of
// its sum, is called its lane. After each round of 16 stripes (1 KiB), XXH3 scrambles the sums. Within a round, the
// order of the additions does not matter. So the 32 threads of a warp take a round together. Each thread moves two
// vectors that have the same two lanes, and adds them to its own sums of these lanes. The warp adds up its threads'
// sums and stores the round's eight sums in shared memory. When all rounds are stored, eight threads go through them
// and scramble, one thread for each lane.
#pragma once

#include "kernels/digest_body.hpp"
#include "kernels/launch.hpp"
#include "kernels/segments_body.hpp"

namespace ckpt::kernels::device {

// The arguments of one launch. The kernels get them by value.
struct PackJob {
  SegmentsJob range;       // begins where a leaf of the piece begins
  std::uint64_t* digests;  // of the leaves in the range; null: none are made
  DigestKeys keys;
};

enum class Direction { pack, unpack };

inline constexpr unsigned threads_per_warp = 32;
inline constexpr unsigned stripe_bytes = 64;
inline constexpr unsigned vectors_per_stripe = stripe_bytes / vector_bytes;
inline constexpr unsigned vectors_per_round = stripes_per_block * vectors_per_stripe;
inline constexpr unsigned vectors_per_thread = vectors_per_round / threads_per_warp;
inline constexpr unsigned rounds_per_leaf = leaf_size_bytes / (vectors_per_round * vector_bytes);
inline constexpr unsigned short_leaf_bytes = 240;

// The sums of a leaf, for each round and each lane.
using RoundSums = std::uint64_t[rounds_per_leaf][lanes_per_leaf];

// The sums of one thread in one round, for an even lane and for the next lane.
struct LanePair {
  std::uint64_t even, odd;
};

// Narrows the range to its leaf number `leaf`, and to the segments that have bytes of this leaf.
CKPT_ON_DEVICE SegmentsJob leaf_job(const SegmentsJob& range, std::uint64_t leaf) {
  const std::uint64_t begin = leaf * leaf_size_bytes, rest = range.length_bytes - begin;
  const std::uint64_t length = rest < leaf_size_bytes ? rest : leaf_size_bytes, first = range.first_byte + begin;
  const std::uint64_t low = segment_of(range, first), high = segment_of(range, first + length - 1);
  const bool is_direct = range.skips_direct && low == high && range.segments[low].is_direct;
  unsigned char* const packed = range.packed == nullptr || is_direct ? nullptr : range.packed + begin;
  return {range.segments + low, high - low + 1, first, length, packed, range.skips_direct};
}

// Where a leaf's first byte is, if all of the leaf is aligned vectors of one segment. Null otherwise.
CKPT_ON_DEVICE unsigned char* plain_data(const SegmentsJob& leaf) {
  if (leaf.count != 1 || leaf.length_bytes % vector_bytes != 0) return nullptr;
  unsigned char* const data = leaf.segments[0].data + (leaf.first_byte - leaf.segments[0].begin);
  return misalignment(data) == 0 ? data : nullptr;
}

CKPT_ON_DEVICE unsigned round_count(const SegmentsJob& leaf) {
  return static_cast<unsigned>((vector_count(leaf) + vectors_per_round - 1) / vectors_per_round);
}

// How many stripes of a leaf XXH3 takes in rounds. Afterwards it takes the leaf's last 64 bytes as one more stripe.
CKPT_ON_DEVICE std::uint64_t stripe_count(const SegmentsJob& leaf) { return (leaf.length_bytes - 1) / stripe_bytes; }

// Reads 16 bytes of a leaf, which may begin at any byte of it.
template <Direction direction>
CKPT_ON_DEVICE Vector bytes_at(const SegmentsJob& leaf, std::uint64_t byte) {
  if (direction == Direction::pack) return packed_bytes(leaf, byte);
  return load(leaf.packed, static_cast<std::int64_t>(leaf.length_bytes), static_cast<std::int64_t>(byte));
}

// `plain`: plain_data() of the leaf.
template <Direction direction>
CKPT_ON_DEVICE Vector read_vector(const SegmentsJob& leaf, const unsigned char* plain, std::uint64_t index) {
  const unsigned char* const whole = direction == Direction::pack ? plain : plain == nullptr ? nullptr : leaf.packed;
  return whole != nullptr ? vector_at(whole + index * vector_bytes) : bytes_at<direction>(leaf, index * vector_bytes);
}

template <Direction direction>
CKPT_ON_DEVICE void write_vector(const SegmentsJob& leaf, unsigned char* plain, std::uint64_t index,
                                 const Vector& vector) {
  if (direction == Direction::pack) {
    if (leaf.packed != nullptr) store_packed(leaf, index, vector);
  } else if (plain != nullptr) {
    *reinterpret_cast<Vector*>(plain + index * vector_bytes) = vector;
  } else {
    store_unpacked(leaf, index, vector);
  }
}

// Moves the vectors of one thread of a warp in one round, and returns the thread's sums. Threads whose numbers are
// equal modulo four have the same two lanes.
template <Direction direction>
CKPT_ON_DEVICE LanePair move_round(const SegmentsJob& leaf, unsigned char* plain, const std::uint64_t* words,
                                   unsigned round, unsigned thread) {
  const std::uint64_t first = std::uint64_t{round} * vectors_per_round + thread, count = vector_count(leaf);
  const std::uint64_t stripes = stripe_count(leaf);
  const unsigned even_lane = thread % vectors_per_stripe * 2;
  Vector vectors[vectors_per_thread];
  CKPT_UNROLL
  for (unsigned i = 0; i < vectors_per_thread; ++i) {  // all reads first, so that they are in flight together
    const std::uint64_t index = first + i * threads_per_warp;
    vectors[i] = index < count ? read_vector<direction>(leaf, plain, index) : Vector{};
  }
  LanePair sums{};
  CKPT_UNROLL
  for (unsigned i = 0; i < vectors_per_thread; ++i) {
    const std::uint64_t index = first + i * threads_per_warp, stripe = index / vectors_per_stripe;
    if (index < count) write_vector<direction>(leaf, plain, index, vectors[i]);
    if (stripe >= stripes) continue;
    const std::uint64_t* const keys = words + stripe % stripes_per_block + even_lane;
    sums.even = accumulated(sums.even, vectors[i], 0, keys[0]);
    sums.odd = accumulated(sums.odd, vectors[i], 1, keys[1]);
  }
  return sums;
}

// Returns a lane's accumulator of a leaf of more than 240 bytes, once all of its rounds are summed up.
template <Direction direction>
CKPT_ON_DEVICE std::uint64_t accumulator(const SegmentsJob& leaf, const DigestKeys& keys, const RoundSums& sums,
                                         unsigned lane) {
  const std::uint64_t stripes = stripe_count(leaf);
  const auto whole_rounds = static_cast<unsigned>(stripes / stripes_per_block);
  std::uint64_t sum = first_accumulator(lane);
  for (unsigned round = 0; round < whole_rounds; ++round)
    sum = scrambled(sum + sums[round][lane], keys.words[stripes_per_block + lane]);
  if (stripes % stripes_per_block != 0) sum += sums[whole_rounds][lane];
  const Vector last = bytes_at<direction>(leaf, leaf.length_bytes - stripe_bytes + lane / 2 * vector_bytes);
  return accumulated(sum, last, lane, keys.last[lane]);
}

// Returns the digest of a leaf of at most 240 bytes. `bytes`: room for short_leaf_bytes bytes.
template <Direction direction>
CKPT_ON_DEVICE std::uint64_t digest_short_leaf(const SegmentsJob& leaf, const DigestKeys& keys, unsigned char* bytes) {
  for (std::uint64_t i = 0; i < vector_count(leaf); ++i)
    store(bytes, short_leaf_bytes, static_cast<std::int64_t>(i * vector_bytes),
          bytes_at<direction>(leaf, i * vector_bytes));
  return digest_short(keys, {bytes, leaf.length_bytes});
}

// Does on the host what a block of threads does to leaf number `index` of the range, and returns the leaf's digest.
template <Direction direction>
std::uint64_t move_leaf_on_host(const PackJob& job, std::uint64_t index) {
  const SegmentsJob leaf = leaf_job(job.range, index);
  RoundSums sums{};
  for (unsigned round = 0; round < round_count(leaf); ++round) {
    for (unsigned thread = 0; thread < threads_per_warp; ++thread) {
      const LanePair part = move_round<direction>(leaf, plain_data(leaf), job.keys.words, round, thread);
      sums[round][thread % vectors_per_stripe * 2] += part.even;
      sums[round][thread % vectors_per_stripe * 2 + 1] += part.odd;
    }
  }
  alignas(vector_bytes) unsigned char bytes[short_leaf_bytes] = {};
  if (leaf.length_bytes <= short_leaf_bytes) return digest_short_leaf<direction>(leaf, job.keys, bytes);
  std::uint64_t accumulators[lanes_per_leaf];
  for (unsigned lane = 0; lane < lanes_per_leaf; ++lane)
    accumulators[lane] = accumulator<direction>(leaf, job.keys, sums, lane);
  return merge_lanes(job.keys, accumulators, leaf.length_bytes);
}

}  // namespace ckpt::kernels::device
