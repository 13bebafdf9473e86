// Slot reads one slot of a segment: a piece and its manifest. WritableSlot also writes it. A reader ignores the piece
// unless the slot's seal is valid.
//
// Both point into the mapping of a Segment and must not outlive it. Any process and thread may read. A slot has one
// writer at a time: the rank's trainer in a local segment, the agent in a held one. Only the agent calls drop().
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "arena/arena_format.hpp"
#include "arena/manifest.hpp"

namespace ckpt::arena {

// The capacity of a slot. It is checked and copied from the segment's header once, and the header is never read again.
// So nobody can change it later.
struct SlotBounds {
  std::string_view shard;  // of the segment
  std::uint64_t data_capacity_bytes = 0;
  std::uint64_t manifest_capacity_bytes = 0;
};

// The fields of a slot that the seal is computed from.
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

  // Returns the piece's manifest if the slot holds a whole piece that was not dropped. Checks the manifest's fields
  // against each other and against the slot's bounds, but does not read the data. Returns nothing if the slot is empty,
  // being written, dropped or malformed.
  std::optional<Manifest> read() const;
  // Returns the piece's checkpoint. Checks only the seal, so read() may still refuse the piece.
  CheckpointId checkpoint() const;

  const std::byte* data() const { return data_; }
  std::uint64_t data_capacity_bytes() const { return bounds_.data_capacity_bytes; }
  std::uint64_t manifest_capacity_bytes() const { return bounds_.manifest_capacity_bytes; }
  // True if a piece of this size fits.
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

  // Empties the slot, for all readers, until seal().
  void begin();
  // Valid between begin() and seal(): data_capacity_bytes() bytes, and the digests of as many leaves as fit().
  std::byte* data() { return data_; }
  std::uint64_t* digests() { return reinterpret_cast<std::uint64_t*>(manifest_); }
  // True if the piece last sealed here had this length and layout. Then its layout text is still in place.
  bool holds_layout(std::uint64_t length_bytes, std::uint64_t layout_hash) const {
    return header_->length_bytes == length_bytes && header_->layout_hash == layout_hash;
  }
  // Writes the layout text after the digests of a piece of `length_bytes`. It stays there until it is written again.
  void write_layout(std::uint64_t length_bytes, std::string_view text);
  // Publishes a piece whose data, digests and layout are written. Computes `fields.root_digest` itself. Throws Failure
  // if the slot was not emptied before, or if the piece does not fit().
  void seal(SealedFields fields);

  // Publishes a piece whose data is written and verified, with a manifest that came from elsewhere and fits(). Throws
  // Failure if it does not, or if this object did not begin().
  void seal(const Manifest& manifest);

  // Agent: from now on nobody finds this checkpoint's piece here, not even after attaching again.
  void drop(CheckpointId checkpoint) { header_->dropped.store(checkpoint.word(), std::memory_order_release); }

 private:
  void publish(SealedFields fields);

  bool begun_ = false;  // by this object
};

}  // namespace ckpt::arena
