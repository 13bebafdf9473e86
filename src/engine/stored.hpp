// What the agent brought home for this rank: the decided checkpoint's pieces. Nothing is written there.
//
// Used by the training thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "arena/layout.hpp"
#include "arena/receive_buffer.hpp"
#include "arena/segment.hpp"
#include "base/frame_socket.hpp"
#include "engine/tensor_registry.hpp"

namespace ckpt::engine {

struct StoredPiece {
  arena::Segment segment;
  arena::Slot slot;
  arena::Manifest manifest;
  arena::Layout layout;
  ckpt_tier tier;
};

struct Stored {
  bool found = false;
  bool behind = false;
  bool status_unknown = false;
  std::string message;
  std::uint64_t incarnation = 0;
  std::int64_t iteration = -1;
  double fetch_ms = 0;
  protocol::Share share;          // that this rank captures from now on
  std::vector<StoredPiece> main;  // when found: the shard's parts in order
  std::optional<StoredPiece> private_;
  // Where what comes from GPU to GPU arrives, and the page of that path: where the rank asked for it and has a group.
  std::optional<arena::ReceiveBuffer> receive_buffer;
  std::string no_receive_buffer;  // why it cannot be used
};

// A piece that is not what the agent said; the agent can bring another.
struct CorruptPiece {
  std::string shard;
  CheckpointId checkpoint;
  std::size_t leaf = 0;
};

// Takes the agent's answer to "restore" apart. Throws Failure (CKPT_ERR_INTERNAL) where it is malformed, CorruptPiece
// where a slot holds no whole piece.
Stored take_stored(Frame answer);

// Throws Failure (CKPT_ERR_MISMATCH), with the first differing tensor named, unless it can be loaded into `state`.
void check_matches(const Stored& stored, const RankState& state, std::uint32_t world_size);

// The answer to ckpt_stored_layout().
std::string stored_layout_json(const Stored& stored);

}  // namespace ckpt::engine
