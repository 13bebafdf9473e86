// What one GPU thread does to pack a shard's tensors into one piece, or to unpack a piece into tensors. The code also
// compiles for the host, so tests need no GPU. The kernels of capture_kernels.cu run it. Internal to kernels/.
//
// A range of the packed bytes takes one launch, however many tensors there are. Each thread copies vectors of 16 packed
// bytes. It looks up in a table in which segments these bytes lie. In kernels/, a segment is a range of a piece whose
// bytes lie one after the other in one tensor. The thread never accesses a byte outside the segments.
// kernels/pack_body.hpp uses these functions for a block of threads.
#pragma once

#include "kernels/parity_body.hpp"

namespace ckpt::kernels::device {

// An entry of the table of segments. No segment in it is empty. The table is sorted by `begin`. After the segments
// comes one more entry, whose `begin` is the length of the piece.
struct DeviceSegment {
  unsigned char* data;
  std::uint64_t begin;     // where the segment begins in the packed piece, in bytes
  bool is_direct = false;  // a copy engine may copy it out of the tensor, so that it need not be packed
};

// A range of the piece, which one launch packs or unpacks.
struct SegmentsJob {
  const DeviceSegment* segments;  // the table
  std::uint64_t count;            // how many segments, without the last entry
  std::uint64_t first_byte;       // where the range begins in the piece; a multiple of 16
  std::uint64_t length_bytes;     // of the range
  unsigned char* packed;          // the packed bytes of the range; 16-byte aligned. Null: they are not stored
  bool skips_direct;              // leaves that lie in one direct segment are not stored
};

CKPT_ON_DEVICE std::uint64_t vector_count(const SegmentsJob& job) {
  return (job.length_bytes + vector_bytes - 1) / vector_bytes;
}

// Returns the index, in `job.segments`, of the segment that has this byte of the piece.
CKPT_ON_DEVICE std::uint64_t segment_of(const SegmentsJob& job, std::uint64_t byte) {
  std::uint64_t low = 0, high = job.count;
  while (high - low > 1) {
    const std::uint64_t middle = (low + high) / 2;
    if (job.segments[middle].begin <= byte) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Calls `meet(data, size, at)` for every segment that has some of the 16 bytes from `byte` of the range on. `data` and
// `size` are the segment's. The 16 bytes begin at offset `at` from the segment's first byte. `at` is negative if they
// begin before it.
template <class Meet>
CKPT_ON_DEVICE void for_each_segment(const SegmentsJob& job, std::uint64_t byte, Meet meet) {
  const std::uint64_t begin = job.first_byte + byte, end = begin + vector_bytes;
  for (std::uint64_t i = segment_of(job, begin); i < job.count && job.segments[i].begin < end; ++i) {
    const DeviceSegment& segment = job.segments[i];
    const auto size = static_cast<std::int64_t>(job.segments[i + 1].begin - segment.begin);
    meet(segment.data, size, static_cast<std::int64_t>(begin - segment.begin));
  }
}

// Reads 16 bytes of the range, from `byte` on, out of the segments.
CKPT_ON_DEVICE Vector packed_bytes(const SegmentsJob& job, std::uint64_t byte) {
  Vector vector{};
  for_each_segment(job, byte, [&](const unsigned char* data, std::int64_t size, std::int64_t at) {
    add(vector, load(data, size, at));
  });
  return vector;
}

// Writes vector number `index` of the range to the packed bytes.
CKPT_ON_DEVICE void store_packed(const SegmentsJob& job, std::uint64_t index, const Vector& vector) {
  store(job.packed, static_cast<std::int64_t>(job.length_bytes), static_cast<std::int64_t>(index * vector_bytes),
        vector);
}

// Writes vector number `index` of the range to the segments.
CKPT_ON_DEVICE void store_unpacked(const SegmentsJob& job, std::uint64_t index, const Vector& vector) {
  for_each_segment(job, index * vector_bytes,
                   [&](unsigned char* data, std::int64_t size, std::int64_t at) { store(data, size, at, vector); });
}

}  // namespace ckpt::kernels::device
