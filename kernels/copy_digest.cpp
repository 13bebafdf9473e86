#include "kernels/copy_digest.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/leaf_hasher.hpp"

namespace ckpt::kernels {

namespace {

template <typename Segment>
std::vector<std::size_t> prefix_sums(std::span<const Segment> segments) {
  std::vector<std::size_t> offsets;
  offsets.reserve(segments.size() + 1);
  offsets.push_back(0);
  for (const Segment& segment : segments) offsets.push_back(offsets.back() + segment.size_bytes);
  return offsets;
}

// A place in an ordered list of segments: byte within_ of segment at_. Invariant: unless the place is the end of the
// list, the segment has such a byte.
template <typename Segment>
class Cursor {
 public:
  Cursor(std::span<const Segment> segments, std::span<const std::size_t> offsets, std::size_t offset)
      : segments_(segments) {
    const auto after = std::upper_bound(offsets.begin(), offsets.end(), offset);
    at_ = static_cast<std::size_t>(after - offsets.begin()) - 1;
    within_ = offset - offsets[at_];
  }

  // How many bytes there are from here to the end of the segment.
  std::size_t run_bytes() const { return segments_[at_].size_bytes - within_; }
  auto* data() const { return segments_[at_].data + within_; }

  // size_bytes must be at most run_bytes().
  void advance(std::size_t size_bytes) {
    within_ += size_bytes;
    while (at_ < segments_.size() && within_ == segments_[at_].size_bytes) {
      ++at_;
      within_ = 0;
    }
  }

 private:
  std::span<const Segment> segments_;
  std::size_t at_;
  std::size_t within_;
};

using SourceCursor = Cursor<Source>;
using TargetCursor = Cursor<Target>;

void read_across(SourceCursor& cursor, std::byte* destination, std::size_t size_bytes) {
  while (size_bytes > 0) {
    const std::size_t run = std::min(size_bytes, cursor.run_bytes());
    std::memcpy(destination, cursor.data(), run);
    cursor.advance(run);
    destination += run;
    size_bytes -= run;
  }
}

// Copies and digests stripes. Those inside one segment go straight through the loop. A stripe across segments is put
// together first.
void gather_stripes(const StripeLoops& loops, LeafHasher& hasher, SourceCursor& cursor, std::byte* destination,
                    std::size_t stripes) {
  for (std::size_t done = 0; done < stripes;) {
    std::byte* to = destination + done * stripe_size_bytes;
    const std::size_t run = std::min(stripes - done, cursor.run_bytes() / stripe_size_bytes);
    if (run > 0) {
      loops.digest_and_copy(hasher.accumulators, done, cursor.data(), cursor.data(), to, run);
      cursor.advance(run * stripe_size_bytes);
      done += run;
    } else {
      alignas(64) std::byte straddling[stripe_size_bytes];
      read_across(cursor, straddling, sizeof straddling);
      loops.digest_and_copy(hasher.accumulators, done, straddling, straddling, to, 1);
      ++done;
    }
  }
}

std::uint64_t gather_leaf(const StripeLoops& loops, SourceCursor& cursor, std::byte* destination,
                          std::size_t size_bytes) {
  if (size_bytes <= short_leaf_max_bytes) {
    read_across(cursor, destination, size_bytes);
    return short_leaf_digest(destination, size_bytes);
  }
  LeafHasher hasher;
  const std::size_t stripes = whole_stripes(size_bytes);
  gather_stripes(loops, hasher, cursor, destination, stripes);
  const std::size_t streamed = stripes * stripe_size_bytes;
  read_across(cursor, destination + streamed, size_bytes - streamed);
  return hasher.finish(destination + size_bytes - stripe_size_bytes, size_bytes);
}

// The digest of a leaf that lies in segments.
std::uint64_t scattered_leaf_digest(const StripeLoops& loops, std::span<const Source> segments,
                                    std::span<const std::size_t> offsets, std::size_t leaf) {
  const std::size_t begin = leaf * leaf_size_bytes, size_bytes = leaf_length(offsets.back(), leaf);
  SourceCursor cursor(segments, offsets, begin);
  alignas(64) std::byte together[short_leaf_max_bytes];
  if (size_bytes <= short_leaf_max_bytes) {
    read_across(cursor, together, size_bytes);
    return short_leaf_digest(together, size_bytes);
  }
  LeafHasher hasher;
  const std::size_t stripes = whole_stripes(size_bytes);
  for (std::size_t done = 0; done < stripes;) {
    const std::size_t run = std::min(stripes - done, cursor.run_bytes() / stripe_size_bytes);
    if (run > 0) {
      loops.digest(hasher.accumulators, done, cursor.data(), run);
      cursor.advance(run * stripe_size_bytes);
      done += run;
    } else {
      read_across(cursor, together, stripe_size_bytes);
      loops.digest(hasher.accumulators, done, together, 1);
      ++done;
    }
  }
  SourceCursor last(segments, offsets, begin + size_bytes - stripe_size_bytes);
  read_across(last, together, stripe_size_bytes);
  return hasher.finish(together, size_bytes);
}

void write_across(TargetCursor& cursor, const std::byte* source, std::size_t size_bytes) {
  while (size_bytes > 0) {
    const std::size_t run = std::min(size_bytes, cursor.run_bytes());
    std::memcpy(cursor.data(), source, run);
    cursor.advance(run);
    source += run;
    size_bytes -= run;
  }
}

std::size_t to_line_end(const std::byte* at) { return -reinterpret_cast<std::uintptr_t>(at) % stripe_size_bytes; }

// Stripes to digest begin at multiples of 64 bytes of the leaf, lines to stream at multiples of 64 bytes of the target.
// So within a segment, the copy is ahead of the digest by less than two stripes, which stay in the nearest cache. At
// the end of the segment, the digest catches up.
std::uint64_t scatter_leaf(const StripeLoops& loops, TargetCursor& cursor, const std::byte* leaf,
                           std::size_t size_bytes) {
  if (size_bytes <= short_leaf_max_bytes) {
    write_across(cursor, leaf, size_bytes);
    return short_leaf_digest(leaf, size_bytes);
  }
  LeafHasher hasher;
  const std::size_t stripes = whole_stripes(size_bytes);
  std::size_t digested = 0;
  for (std::size_t copied = 0; copied < size_bytes;) {
    const std::byte* from = leaf + copied;
    std::byte* to = cursor.data();
    const std::size_t run = std::min(size_bytes - copied, cursor.run_bytes());
    const std::size_t head = std::min(run, to_line_end(to));
    const std::size_t lines = std::min((run - head) / stripe_size_bytes, stripes - digested);
    const std::size_t streamed = head + lines * stripe_size_bytes;
    std::memcpy(to, from, head);
    loops.digest_and_copy(hasher.accumulators, digested, leaf + digested * stripe_size_bytes, from + head, to + head,
                          lines);
    std::memcpy(to + streamed, from + streamed, run - streamed);
    digested += lines;
    copied += run;
    cursor.advance(run);

    const std::size_t due = std::min(stripes, copied / stripe_size_bytes) - digested;
    loops.digest(hasher.accumulators, digested, leaf + digested * stripe_size_bytes, due);
    digested += due;
  }
  return hasher.finish(leaf + size_bytes - stripe_size_bytes, size_bytes);
}

}  // namespace

std::vector<std::size_t> segment_offsets(std::span<const Source> segments) { return prefix_sums(segments); }
std::vector<std::size_t> segment_offsets(std::span<const Target> segments) { return prefix_sums(segments); }

void gather_leaves(std::span<const Source> segments, std::span<const std::size_t> offsets, std::byte* packed,
                   std::size_t first_leaf, std::size_t last_leaf, std::uint64_t* digests, Isa isa) {
  if (first_leaf >= last_leaf) return;
  const StripeLoops& loops = stripe_loops(isa);
  SourceCursor cursor(segments, offsets, first_leaf * leaf_size_bytes);
  for (std::size_t leaf = first_leaf; leaf < last_leaf; ++leaf) {
    digests[leaf] = gather_leaf(loops, cursor, packed + leaf * leaf_size_bytes, leaf_length(offsets.back(), leaf));
  }
  streaming_fence();
}

std::optional<std::size_t> scatter_leaves(std::span<const Target> segments, std::span<const std::size_t> offsets,
                                          const std::byte* packed, std::size_t first_leaf, std::size_t last_leaf,
                                          const std::uint64_t* expected, Isa isa) {
  if (first_leaf >= last_leaf) return std::nullopt;
  const StripeLoops& loops = stripe_loops(isa);
  TargetCursor cursor(segments, offsets, first_leaf * leaf_size_bytes);
  std::optional<std::size_t> bad_leaf;
  for (std::size_t leaf = first_leaf; leaf < last_leaf && !bad_leaf; ++leaf) {
    const std::byte* data = packed + leaf * leaf_size_bytes;
    const std::uint64_t found = scatter_leaf(loops, cursor, data, leaf_length(offsets.back(), leaf));
    if (found != expected[leaf]) bad_leaf = leaf;
  }
  streaming_fence();
  return bad_leaf;
}

std::optional<std::size_t> verify_leaves(const std::byte* packed, std::size_t length_bytes, std::size_t first_leaf,
                                         std::size_t last_leaf, const std::uint64_t* expected, Isa isa) {
  for (std::size_t leaf = first_leaf; leaf < last_leaf; ++leaf) {
    const std::byte* data = packed + leaf * leaf_size_bytes;
    if (leaf_digest(data, leaf_length(length_bytes, leaf), isa) != expected[leaf]) return leaf;
  }
  return std::nullopt;
}

std::optional<std::size_t> verify_segments(std::span<const Source> segments, std::span<const std::size_t> offsets,
                                           std::size_t first_leaf, std::size_t last_leaf, const std::uint64_t* expected,
                                           Isa isa) {
  const StripeLoops& loops = stripe_loops(isa);
  for (std::size_t leaf = first_leaf; leaf < last_leaf; ++leaf) {
    if (scattered_leaf_digest(loops, segments, offsets, leaf) != expected[leaf]) return leaf;
  }
  return std::nullopt;
}

}  // namespace ckpt::kernels
