// Stored is what a rank restores from: the agent's answer to a restore, with the slots of the checkpoint's pieces. The
// trainer only reads them.
//
// Only the training thread uses it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "arena/layout.hpp"
#include "arena/segment.hpp"
#include "base/frame_socket.hpp"
#include "client/tensor_registry.hpp"
#include "gpu_replication/receive_buffer.hpp"

namespace ckpt::client {

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
  core::Share share;              // what this rank captures from now on
  bool is_replicated = false;     // ranks on two nodes or more have each main shard of the job
  std::vector<StoredPiece> main;  // if a checkpoint was found: the shard's parts in order
  std::optional<StoredPiece> private_;
  // If this rank takes over shards: all pieces of these shards except `private_`, each shard's parts in order. Then
  // `main` is empty.
  std::vector<StoredPiece> taken;
  // Where other GPUs' pieces arrive. Set if the rank asked for GPU replication and has a replication group.
  std::optional<arena::ReceiveBuffer> receive_buffer;
  std::string no_receive_buffer;  // why there is no receive buffer; "" if there is one or none was asked for

  bool is_taken_over() const { return found && main.empty(); }
};

// A piece whose bytes do not match its manifest. The agent can fetch another copy.
struct CorruptPiece {
  std::string shard;
  CheckpointId checkpoint;
  std::size_t leaf = 0;
};

// Parses the agent's answer to "restore". Throws Failure (CKPT_ERR_INTERNAL) if it is malformed, and CorruptPiece if a
// slot holds no whole piece.
Stored take_stored(Frame answer);

// Throws Failure (CKPT_ERR_MISMATCH) unless the pieces can be loaded into `state`. The message names the first tensor
// that differs.
void check_matches(const Stored& stored, const RankState& state);

// The pieces of a shard that this rank takes over, or of its own main or private shard, in order. Empty if it has none
// of that name.
std::vector<const StoredPiece*> pieces_of(const Stored& stored, const std::string& shard);

// Return the text that ckpt_stored_layout() gives to the caller. `main`: of any part of the main shard.
std::string stored_layout_json(const Stored& stored);
std::string stored_layout_json(const arena::Manifest& main, const arena::Manifest& private_, std::uint64_t incarnation);

}  // namespace ckpt::client
