// A slot of a segment: one piece with its manifest, whole under its seal or as good as absent.
//
// Views into a mapping that a Segment owns, to be used while it lives. Slot reads: any process, any number of threads.
// WritableSlot: one writer at a time (the rank's trainer in its local segments, the agent in held ones); drop() is the
// agent's alone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "arena/arena_format.hpp"
#include "arena/manifest.hpp"

namespace ckpt::arena {

// What a slot can hold; from the segment's header as it was checked when attaching, never read again.
struct SlotBounds {
  std::string_view shard;  // of the segment
  std::uint64_t data_capacity_bytes = 0;
  std::uint64_t manifest_capacity_bytes = 0;
};

// Fields of a slot that a seal covers.
struct SealedFields {
  std::uint64_t checkpoint = 0;
  std::uint64_t length_bytes = 0;
  std::uint64_t root_digest = 0;
  std::uint64_t layout_bytes = 0;
  std::uint64_t layout_hash = 0;
  std::uint32_t world_size = 0;
};
std::uint64_t seal_of(const SealedFields& fields);

class Slot {
 public:
  Slot(SlotHeader* header, const SlotBounds& bounds);

  // The piece's manifest if a whole piece that was not dropped lies here, its parts checked against each other and
  // against the slot's bounds; the data is not read. Nothing when it is empty, being written, dropped or malformed.
  std::optional<Manifest> read() const;
  // The checkpoint of the piece, by its seal alone: read() may still refuse it.
  CheckpointId checkpoint() const;

  const std::byte* data() const { return data_; }
  std::uint64_t data_capacity_bytes() const { return bounds_.data_capacity_bytes; }
  std::uint64_t manifest_capacity_bytes() const { return bounds_.manifest_capacity_bytes; }
  // Whether a piece of this size fits.
  bool fits(std::uint64_t length_bytes, std::uint64_t layout_bytes) const;

 protected:
  std::optional<SealedFields> sealed_fields() const;

  SlotHeader* header_;
  std::byte* manifest_;
  std::byte* data_;
  SlotBounds bounds_;
};

class WritableSlot : public Slot {
 public:
  using Slot::Slot;

  // From here on the slot is empty to everyone, until seal().
  void begin();
  // Between begin() and seal(): data_capacity_bytes() bytes, and the digests of as many leaves as fit().
  std::byte* data() { return data_; }
  std::uint64_t* digests() { return reinterpret_cast<std::uint64_t*>(manifest_); }
  // Whether the piece that was sealed here last, if any, had this length and layout: then its text is still in place.
  bool holds_layout(std::uint64_t length_bytes, std::uint64_t layout_hash) const {
    return header_->length_bytes == length_bytes && header_->layout_hash == layout_hash;
  }
  // The layout text lies behind the digests of a piece of `length_bytes`, and stays there until it is written again.
  void write_layout(std::uint64_t length_bytes, std::string_view text);
  // Publishes a piece whose data, digests and layout are written. `fields.root_digest` is computed here.
  void seal(SealedFields fields);

  // Publishes a piece whose data is written and verified, with a manifest that came from elsewhere and fits().
  void seal(const Manifest& manifest);

  // Agent: the piece of this checkpoint is not to be found here any more, also after attaching again.
  void drop(CheckpointId checkpoint) { header_->dropped.store(checkpoint.word(), std::memory_order_release); }
};

}  // namespace ckpt::arena
