#include "arena/slot.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <cstring>

#include "base/check.hpp"
#include "kernels/digest.hpp"

namespace ckpt::arena {
namespace {

// A reader may load fields while a writer stores them, such as a frozen trainer that has woken. The seal reveals a mix
// of old and new fields, so only each single load and store must be atomic.
template <class T>
T load(const T& field) {
  return __atomic_load_n(&field, __ATOMIC_RELAXED);
}
template <class T>
void store(T& field, T value) {
  __atomic_store_n(&field, value, __ATOMIC_RELAXED);
}

SealedFields fields_of(const Manifest& manifest) {
  return {manifest.checkpoint.word(), manifest.length_bytes, manifest.root_digest,
          manifest.layout.size(),     manifest.layout_hash,  manifest.world_size};
}

}  // namespace

std::uint64_t seal_of(const SealedFields& fields) {
  const std::array<std::uint64_t, 6> words = {fields.checkpoint,   fields.length_bytes, fields.root_digest,
                                              fields.layout_bytes, fields.layout_hash,  fields.world_size};
  const std::uint64_t seal = XXH3_64bits(words.data(), sizeof(words));
  return seal != 0 ? seal : 1;
}

Slot::Slot(SlotHeader* header, const SlotBounds& bounds)
    : header_(header),
      manifest_(reinterpret_cast<std::byte*>(header) + page_bytes),
      data_(manifest_ + bounds.manifest_capacity_bytes),
      bounds_(bounds) {}

bool Slot::fits(std::uint64_t length_bytes, std::uint64_t layout_bytes) const {
  return length_bytes <= bounds_.data_capacity_bytes && layout_bytes <= bounds_.manifest_capacity_bytes &&
         manifest_bytes(length_bytes, layout_bytes) <= bounds_.manifest_capacity_bytes;
}

SealedFields Slot::fields() const {
  return {load(header_->checkpoint),   load(header_->length_bytes), load(header_->root_digest),
          load(header_->layout_bytes), load(header_->layout_hash),  load(header_->world_size)};
}

std::optional<SealedFields> Slot::sealed_fields() const {
  const std::uint64_t seal = header_->seal.load(std::memory_order_acquire);
  if (seal == 0) return std::nullopt;
  const SealedFields found = fields();
  if (seal != seal_of(found) || found.checkpoint == header_->dropped.load(std::memory_order_acquire))
    return std::nullopt;
  return found;
}

CheckpointId Slot::checkpoint() const {
  const auto fields = sealed_fields();
  return fields ? CheckpointId::from_word(fields->checkpoint) : CheckpointId();
}

std::optional<Manifest> Slot::read() const {
  const auto fields = sealed_fields();
  return fields ? manifest_of(*fields) : std::nullopt;
}

// Returns nothing if these fields, the digests and the layout text in the slot are not consistent.
std::optional<Manifest> Slot::manifest_of(const SealedFields& fields) const {
  if (!fits(fields.length_bytes, fields.layout_bytes)) return std::nullopt;
  Manifest manifest;
  manifest.shard = bounds_.shard;
  manifest.checkpoint = CheckpointId::from_word(fields.checkpoint);
  manifest.length_bytes = fields.length_bytes;
  manifest.root_digest = fields.root_digest;
  manifest.world_size = fields.world_size;
  manifest.layout_hash = fields.layout_hash;
  manifest.leaves.resize(kernels::leaf_count(fields.length_bytes));
  const std::size_t digest_bytes = manifest.leaves.size() * sizeof(std::uint64_t);
  if (digest_bytes != 0) std::memcpy(manifest.leaves.data(), manifest_, digest_bytes);
  manifest.layout.assign(reinterpret_cast<const char*>(manifest_) + digest_bytes, fields.layout_bytes);
  return is_consistent(manifest) ? std::optional(std::move(manifest)) : std::nullopt;
}

std::optional<Slot::Arrival> Slot::arrival() const {
  const std::uint64_t number = header_->arrival.load(std::memory_order_acquire);
  if (number % 2 == 0) return std::nullopt;
  auto manifest = manifest_of(fields());
  if (!manifest || !is_arriving(number)) return std::nullopt;
  return Arrival{number, std::move(*manifest)};
}

bool Slot::is_arriving(std::uint64_t number) const {
  std::atomic_thread_fence(std::memory_order_acquire);  // what was read before this call was read before the word
  return header_->arrival.load(std::memory_order_relaxed) == number;
}

void WritableSlot::begin() {
  withdraw();
  // The exchange is a full barrier. A plain store would not do, because later non-temporal stores may overtake it.
  header_->seal.exchange(0, std::memory_order_seq_cst);
  header_->record_seal.store(0, std::memory_order_relaxed);
  begun_ = true;
}

void WritableSlot::write_layout(std::uint64_t length_bytes, std::string_view text) {
  check(fits(length_bytes, text.size()), "a layout is too long for its slot's manifest");
  std::memcpy(manifest_ + manifest_bytes(length_bytes, 0), text.data(), text.size());
}

void WritableSlot::seal(SealedFields fields) {
  check(header_->seal.load(std::memory_order_acquire) == 0, "a slot is sealed without being emptied first");
  publish(fields);
}

void WritableSlot::publish(SealedFields fields) {
  check(fits(fields.length_bytes, fields.layout_bytes), "a sealed piece is larger than its slot");
  begun_ = false;
  const std::span<const std::uint64_t> leaves(digests(), kernels::leaf_count(fields.length_bytes));
  fields.root_digest = kernels::root_digest(leaves, fields.length_bytes);
  write(fields);
  header_->seal.store(seal_of(fields), std::memory_order_release);
}

void WritableSlot::write(const SealedFields& fields) {
  store(header_->checkpoint, fields.checkpoint);
  store(header_->length_bytes, fields.length_bytes);
  store(header_->root_digest, fields.root_digest);
  store(header_->layout_bytes, fields.layout_bytes);
  store(header_->layout_hash, fields.layout_hash);
  store(header_->world_size, fields.world_size);
}

void WritableSlot::write(const Manifest& manifest) {
  check(fits(manifest.length_bytes, manifest.layout.size()), "a piece is larger than its slot");
  if (!manifest.leaves.empty())
    std::memcpy(manifest_, manifest.leaves.data(), manifest.leaves.size() * sizeof(std::uint64_t));
  write_layout(manifest.length_bytes, manifest.layout);
}

void WritableSlot::announce(const Manifest& manifest) {
  store(header_->layout_hash, std::uint64_t{0});  // holds_layout() is false until the text is written
  write(manifest);
  write(fields_of(manifest));
  arrived(0);
  header_->arrival.store(header_->arrival.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

void WritableSlot::withdraw() {
  const std::uint64_t number = header_->arrival.load(std::memory_order_relaxed);
  if (number % 2 != 0) header_->arrival.store(number + 1, std::memory_order_release);
}

void WritableSlot::seal(const Manifest& manifest) {
  // Checks `begun_`, not the seal in memory, because other processes may write to some of the agent's slots.
  check(begun_, "a slot is sealed without being emptied first");
  write(manifest);
  publish(fields_of(manifest));
}

}  // namespace ckpt::arena
