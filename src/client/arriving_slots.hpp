// What the agent says of the state that a rank waits for, before all of it is here: in which slots it arrives.
#pragma once

#include <cstdint>
#include <vector>

#include "arena/segment.hpp"
#include "base/frame_socket.hpp"

namespace ckpt::client {

// A slot in which a piece arrives, or will.
struct ArrivingSlot {
  arena::Segment segment;
  std::uint32_t slot = 0;
  CheckpointId checkpoint;
  bool is_private = false;  // the piece belongs to the private shard
  bool is_whole = false;    // the piece is here already
};

struct ArrivingSlots {
  std::uint64_t incarnation = 0;    // that restores these pieces
  std::vector<ArrivingSlot> slots;  // all of one checkpoint
};

// Parses an answer of the agent that has "arriving". Leaves out segments that cannot be mapped: the restore itself says
// what is wrong. Throws Failure (CKPT_ERR_INTERNAL) if the answer is malformed.
ArrivingSlots take_arriving(Frame answer);

}  // namespace ckpt::client
