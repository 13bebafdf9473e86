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
#include "base/futex.hpp"

namespace ckpt::arena {

// The capacity of a slot. Segment::attach() checks it and copies it from the segment's header. The header is not read
// again, so nobody can change the capacity later.
struct SlotBounds {
  std::string_view shard;  // the segment's shard
  std::uint64_t data_capacity_bytes = 0;
  std::uint64_t manifest_capacity_bytes = 0;
};

// The fields of a slot from which the seal is computed. SlotHeader explains them.
struct SealedFields {
  std::uint64_t checkpoint = 0;
  std::uint64_t length_bytes = 0;
  std::uint64_t root_digest = 0;
  std::uint64_t layout_bytes = 0;
  std::uint64_t layout_hash = 0;
  std::uint32_t world_size = 0;
};
std::uint64_t seal_of(const SealedFields& fields);

// A gradient record (gradient_record.hpp) in a slot, with the digests of its leaves.
struct SlotRecord {
  std::span<const std::byte> data;
  std::span<const std::uint64_t> digests;
};
// Where to write a gradient record and the digests of its leaves. Both are aligned to 64 bytes.
struct RecordPlace {
  std::byte* data = nullptr;
  std::uint64_t* digests = nullptr;
};

class Slot {
 public:
  Slot(SlotHeader* header, const SlotBounds& bounds);

  // Returns the manifest of the piece in the slot. Checks the manifest's fields against each other and against the
  // slot's capacity, but does not read the data. Returns nothing if the slot is empty, is being written or is
  // malformed, or if its piece was dropped.
  std::optional<Manifest> read() const;
  // Returns the checkpoint of the piece, or an empty id if there is no piece. Checks only the seal. So read() may find
  // the same piece malformed, and return nothing.
  CheckpointId checkpoint() const;
  // Returns the gradient record of the piece in the slot. Nothing if there is no piece, or none with a record. Checks
  // that the record belongs to the piece, but does not read its data.
  std::optional<SlotRecord> record() const;

  // A piece that is arriving in the slot. `number` distinguishes it from all others that arrived here.
  struct Arrival {
    std::uint64_t number = 0;
    Manifest manifest;
  };
  // Returns the piece that is arriving, with a consistent manifest. Nothing if none was announced.
  std::optional<Arrival> arrival() const;
  // How many bytes of the piece that is arriving are here and verified, from the first one on. They were here before
  // this call. They are still the same if is_arriving() is true after they were read.
  std::uint64_t arrived_bytes() const { return header_->arrived_bytes.load(std::memory_order_acquire); }
  // True if nobody has emptied the slot since arrival() returned this number. Also true once the piece is sealed.
  bool is_arriving(std::uint64_t number) const;
  // Waits until the doorbell differs from `seen`, or the deadline passes. The writer rings it when bytes have arrived.
  std::uint32_t arrival_doorbell() const { return header_->arrival_doorbell.load(std::memory_order_acquire); }
  void wait_arrival(std::uint32_t seen, Deadline deadline) const {
    futex_wait(header_->arrival_doorbell, seen, deadline, FutexScope::shared);
  }

  const std::byte* data() const { return data_; }
  std::uint64_t data_capacity_bytes() const { return bounds_.data_capacity_bytes; }
  std::uint64_t manifest_capacity_bytes() const { return bounds_.manifest_capacity_bytes; }
  // True if a piece of this length, with a layout text of this length, fits into the slot.
  bool fits(std::uint64_t length_bytes, std::uint64_t layout_bytes) const;

 protected:
  std::optional<SealedFields> sealed_fields() const;
  SealedFields fields() const;
  std::optional<Manifest> manifest_of(const SealedFields& fields) const;

  SlotHeader* header_;
  std::byte* manifest_;
  std::byte* data_;
  SlotBounds bounds_;
};

class WritableSlot : public Slot {
 public:
  using Slot::Slot;

  // Empties the slot: until seal(), all readers find no piece in it.
  void begin();
  // Where to write between begin() and seal(). data() has room for data_capacity_bytes(), digests() for the digests of
  // every piece that fits().
  std::byte* data() { return data_; }
  std::uint64_t* digests() { return reinterpret_cast<std::uint64_t*>(manifest_); }
  // True if the piece that was last sealed in this slot had this length and layout. Then the layout text is still in
  // the slot, and write_layout() is not needed.
  bool holds_layout(std::uint64_t length_bytes, std::uint64_t layout_hash) const {
    return header_->length_bytes == length_bytes && header_->layout_hash == layout_hash;
  }
  // Writes the layout text to its place after the digests of a piece of `length_bytes`.
  void write_layout(std::uint64_t length_bytes, std::string_view text);
  // Returns where to write the gradient record of a piece of `piece_bytes`. Nothing if the slot has no room for it.
  std::optional<RecordPlace> record_place(std::uint64_t piece_bytes, std::uint64_t record_bytes);
  // Publishes a gradient record whose data and digests are written. Call it between begin() and the seal() of the piece
  // that it belongs to.
  void seal_record(CheckpointId checkpoint, std::uint64_t piece_bytes, std::uint64_t record_bytes);
  // Publishes a piece whose data, digests and layout text are written. Computes `fields.root_digest` itself. Throws
  // Failure if the slot is not empty (see begin()), or if the piece does not fit().
  void seal(SealedFields fields);

  // Lets readers follow a piece while it arrives. announce() publishes its manifest, arrived() how many of its first
  // bytes are written and verified. `bytes` never decreases. withdraw(): the piece will not become whole. Call these
  // between begin() and seal(), and ring_arrival() afterwards. announce() throws Failure if the piece does not fit().
  void announce(const Manifest& manifest);
  void arrived(std::uint64_t bytes) { header_->arrived_bytes.store(bytes, std::memory_order_release); }
  void withdraw();
  void ring_arrival() { ring(header_->arrival_doorbell, FutexScope::shared); }

  // Publishes a piece whose data is written and verified, with a manifest that came from elsewhere. Writes the digests
  // and the layout text. Throws Failure if begin() of this object was not called, or if the piece does not fit().
  void seal(const Manifest& manifest);

  // Agent: drops the piece if it is of this checkpoint. Until drop() is called with another checkpoint, no reader finds
  // a piece of this checkpoint in this slot, not even an agent that attaches later.
  void drop(CheckpointId checkpoint) { header_->dropped.store(checkpoint.word(), std::memory_order_release); }

 private:
  void publish(SealedFields fields);
  void write(const Manifest& manifest);
  void write(const SealedFields& fields);

  bool begun_ = false;  // this object has called begin() and not sealed since
};

}  // namespace ckpt::arena
