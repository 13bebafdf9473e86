// Helpers for the tests of src/agent: arenas in shared memory, pieces with known bytes, and waiting with a limit.
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "agent/pieces/piece_index.hpp"
#include "arena/layout.hpp"
#include "arena/manifest.hpp"
#include "arena/node_arena.hpp"
#include "kernels/digest.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::agent::testing {

constexpr auto wait_limit = std::chrono::seconds(30);  // how long a test waits for what must happen

// Looks until `condition` holds. Returns false if it does not within wait_limit.
template <class Condition>
bool eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + wait_limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Values that other threads put in and a test waits for.
template <class T>
class Mailbox {
 public:
  void put(T value) {
    const std::lock_guard lock(mutex_);
    values_.push_back(std::move(value));
    changed_.notify_all();
  }
  // The next value; throws when wait limit ran out.
  T take() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, wait_limit, [&] { return !values_.empty(); }))
      throw std::runtime_error("nothing came");
    T value = std::move(values_.front());
    values_.erase(values_.begin());
    return value;
  }
  bool empty() {
    const std::lock_guard lock(mutex_);
    return values_.empty();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<T> values_;
};

struct Piece {
  std::vector<std::byte> data;
  arena::Manifest manifest;
};

inline Piece make_piece(const std::string& shard, CheckpointId checkpoint, std::size_t length_bytes,
                        std::uint32_t world_size = 2) {
  Piece piece;
  piece.data.resize(length_bytes);
  std::uint64_t state = checkpoint.word() + shard.size();
  for (std::byte& byte : piece.data) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
  arena::Manifest& manifest = piece.manifest;
  manifest.shard = shard;
  manifest.checkpoint = checkpoint;
  manifest.length_bytes = length_bytes;
  manifest.world_size = world_size;
  manifest.leaves.resize(kernels::leaf_count(length_bytes));
  kernels::digest_leaves(piece.data.data(), length_bytes, manifest.leaves.data());
  manifest.root_digest = kernels::root_digest(manifest.leaves, length_bytes);
  manifest.layout =
      arena::layout_text(arena::pack({{"bytes", CKPT_U8, {static_cast<std::int64_t>(length_bytes)}, 0, length_bytes}}));
  manifest.layout_hash = arena::layout_hash(manifest.layout);
  return piece;
}

inline void write_piece(arena::WritableSlot slot, const Piece& piece) {
  slot.begin();
  std::copy(piece.data.begin(), piece.data.end(), slot.data());
  slot.seal(piece.manifest);
}

inline arena::SegmentSpec segment_spec(core::Rank rank, const std::string& shard, std::size_t data_bytes,
                                       std::uint32_t slots = 3) {
  arena::SegmentSpec spec;
  spec.kind = rank == core::held_rank ? arena::SegmentKind::held : arena::SegmentKind::local;
  spec.rank = rank == core::held_rank ? 0 : rank;
  spec.slots = slots;
  spec.shard = shard;
  spec.data_capacity_bytes = data_bytes;
  spec.manifest_capacity_bytes = arena::manifest_bytes(data_bytes, 4096);
  return spec;
}

}  // namespace ckpt::agent::testing
