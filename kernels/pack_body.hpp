// What a block of GPU threads does to pack one leaf of a piece, or to unpack it, and to digest the leaf on the way. The
// code also compiles for the host, so tests need no GPU. The kernels of capture_kernels.cu run it. Internal to
// kernels/.
//
// Each byte is read once: while a thread has a vector of 16 bytes in registers, it stores the vector and adds it to
// XXH3's sums. XXH3 has eight sums, one for each lane of a stripe (kernels/digest_body.hpp). After each round of 16
// stripes (1 KiB), XXH3 scrambles the sums. Within a round, the order of the additions does not matter. So the 32
// threads of a warp take a round together. Each thread moves two vectors that have the same two lanes, and adds them to
// its own sums of these lanes. The warp adds up its threads' sums and stores the round's eight sums in shared memory.
// When all rounds are stored, eight threads go through them and scramble, one thread for each lane.
//
// Most leaves are whole: they have their full size, and are aligned vectors of one tensor. A block finds this out once.
// For such a leaf its threads check nothing more, and have the reads of several rounds in flight.
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
inline constexpr unsigned warps_per_block = pack_threads_per_block / threads_per_warp;
inline constexpr unsigned short_leaf_bytes = 240;

// How many rounds of a whole leaf a warp takes at once.
inline constexpr unsigned rounds_at_once = 2;
static_assert(rounds_per_leaf % (warps_per_block * rounds_at_once) == 0);

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

// Where a whole leaf comes from and goes to. `from` is null if the leaf is not whole. `to` is null if the bytes are not
// stored.
struct WholeLeaf {
  const unsigned char* from;
  unsigned char* to;
};

template <Direction direction>
CKPT_ON_DEVICE WholeLeaf whole_leaf(const SegmentsJob& leaf) {
  unsigned char* const data = leaf.length_bytes == leaf_size_bytes ? plain_data(leaf) : nullptr;
  if (data == nullptr) return {nullptr, nullptr};
  return direction == Direction::pack ? WholeLeaf{data, leaf.packed} : WholeLeaf{leaf.packed, data};
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

// The words of the secret that a thread of a warp needs for its vectors. They are the same in every round.
struct RoundKeys {
  LanePair of_vectors[vectors_per_thread];
};

CKPT_ON_DEVICE RoundKeys round_keys(const std::uint64_t* words, unsigned thread) {
  RoundKeys keys;
  CKPT_UNROLL
  for (unsigned i = 0; i < vectors_per_thread; ++i) {
    const unsigned stripe = (thread + i * threads_per_warp) / vectors_per_stripe;
    const std::uint64_t* const first = words + stripe + thread % vectors_per_stripe * 2;
    keys.of_vectors[i] = {first[0], first[1]};
  }
  return keys;
}

// The sums of one thread in the rounds that its warp takes at once.
struct WholeSums {
  LanePair rounds[rounds_at_once];
};

// Moves the vectors of one thread of a warp in rounds `first`, `first` + warps_per_block, ... of a whole leaf, and
// returns the thread's sums.
CKPT_ON_DEVICE WholeSums move_whole_rounds(const WholeLeaf& leaf, const RoundKeys& keys, unsigned first,
                                           unsigned thread) {
  constexpr unsigned stripes = leaf_size_bytes / stripe_bytes - 1;  // stripe_count()
  static_assert(stripes % stripes_per_block == stripes_per_block - 1);
  Vector vectors[rounds_at_once][vectors_per_thread];
  CKPT_UNROLL
  for (unsigned round = 0; round < rounds_at_once; ++round) {  // all reads first, so that they are in flight together
    CKPT_UNROLL
    for (unsigned i = 0; i < vectors_per_thread; ++i) {
      const unsigned index = (first + round * warps_per_block) * vectors_per_round + thread + i * threads_per_warp;
      vectors[round][i] = passing_vector_at(leaf.from + std::size_t{index} * vector_bytes);
    }
  }
  WholeSums sums{};
  CKPT_UNROLL
  for (unsigned round = 0; round < rounds_at_once; ++round) {
    CKPT_UNROLL
    for (unsigned i = 0; i < vectors_per_thread; ++i) {
      const unsigned index = (first + round * warps_per_block) * vectors_per_round + thread + i * threads_per_warp;
      const Vector& vector = vectors[round][i];
      if (leaf.to != nullptr) store_vector_at(leaf.to + std::size_t{index} * vector_bytes, vector);
      if (i == vectors_per_thread - 1 && index / vectors_per_stripe >= stripes) continue;  // the leaf's last stripe
      LanePair& sum = sums.rounds[round];
      sum.even = accumulated(sum.even, vector, 0, keys.of_vectors[i].even);
      sum.odd = accumulated(sum.odd, vector, 1, keys.of_vectors[i].odd);
    }
  }
  return sums;
}

// Returns a lane's accumulator of a leaf of more than 240 bytes, once all of its rounds are summed up. `last`: those 16
// bytes of the leaf's last 64 that have the words of the lane and of its neighbour.
CKPT_ON_DEVICE std::uint64_t accumulator(std::uint64_t stripes, const Vector& last, const DigestKeys& keys,
                                         const RoundSums& sums, unsigned lane) {
  const auto whole_rounds = static_cast<unsigned>(stripes / stripes_per_block);
  std::uint64_t sum = first_accumulator(lane);
  for (unsigned round = 0; round < whole_rounds; ++round)
    sum = scrambled(sum + sums[round][lane], keys.words[stripes_per_block + lane]);
  if (stripes % stripes_per_block != 0) sum += sums[whole_rounds][lane];
  return accumulated(sum, last, lane, keys.last[lane]);
}

template <Direction direction>
CKPT_ON_DEVICE std::uint64_t accumulator(const SegmentsJob& leaf, const DigestKeys& keys, const RoundSums& sums,
                                         unsigned lane) {
  const Vector last = bytes_at<direction>(leaf, leaf.length_bytes - stripe_bytes + lane / 2 * vector_bytes);
  return accumulator(stripe_count(leaf), last, keys, sums, lane);
}

// Returns the digest of a leaf of at most 240 bytes. `bytes`: room for short_leaf_bytes bytes, aligned to vectors. It
// is in shared memory, so store() must not be used for it.
template <Direction direction>
CKPT_ON_DEVICE std::uint64_t digest_short_leaf(const SegmentsJob& leaf, const DigestKeys& keys, unsigned char* bytes) {
  for (std::uint64_t i = 0; i < vector_count(leaf); ++i)
    *reinterpret_cast<Vector*>(bytes + i * vector_bytes) = bytes_at<direction>(leaf, i * vector_bytes);
  return ShortLeaf{keys, bytes, static_cast<std::int64_t>(leaf.length_bytes)}.digest();
}

// Does on the host what the warps of a block do to a leaf, and returns the sums of its rounds.
template <Direction direction>
void sum_rounds_on_host(const SegmentsJob& leaf, const DigestKeys& keys, RoundSums& sums) {
  const auto add_to = [&](unsigned round, unsigned thread, const LanePair& part) {
    sums[round][thread % vectors_per_stripe * 2] += part.even;
    sums[round][thread % vectors_per_stripe * 2 + 1] += part.odd;
  };
  const WholeLeaf whole = whole_leaf<direction>(leaf);
  for (unsigned thread = 0; thread < threads_per_warp; ++thread) {
    if (whole.from == nullptr) {
      for (unsigned round = 0; round < round_count(leaf); ++round)
        add_to(round, thread, move_round<direction>(leaf, plain_data(leaf), keys.words, round, thread));
      continue;
    }
    for (unsigned first = 0; first < rounds_per_leaf; first += warps_per_block * rounds_at_once)
      for (unsigned warp = 0; warp < warps_per_block; ++warp) {
        const WholeSums part = move_whole_rounds(whole, round_keys(keys.words, thread), first + warp, thread);
        for (unsigned i = 0; i < rounds_at_once; ++i)
          add_to(first + warp + i * warps_per_block, thread, part.rounds[i]);
      }
  }
}

// Does on the host what a block of threads does to leaf number `index` of the range, and returns the leaf's digest.
template <Direction direction>
std::uint64_t move_leaf_on_host(const PackJob& job, std::uint64_t index) {
  const SegmentsJob leaf = leaf_job(job.range, index);
  RoundSums sums{};
  sum_rounds_on_host<direction>(leaf, job.keys, sums);
  alignas(vector_bytes) unsigned char bytes[short_leaf_bytes] = {};
  if (leaf.length_bytes <= short_leaf_bytes) return digest_short_leaf<direction>(leaf, job.keys, bytes);
  std::uint64_t accumulators[lanes_per_leaf];
  for (unsigned lane = 0; lane < lanes_per_leaf; ++lane)
    accumulators[lane] = accumulator<direction>(leaf, job.keys, sums, lane);
  return merge_lanes(job.keys, accumulators, leaf.length_bytes);
}

}  // namespace ckpt::kernels::device
