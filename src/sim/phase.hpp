// A phase says what a simulated job is doing, so that a fault can aim at it. Several phases may hold at once.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>

namespace ckpt::sim {

class World;

enum class Phase : std::uint8_t {
  down,          // between two launches
  hello,         // some rank has not asked for restore() yet
  deciding,      // all ranks have asked for restore(), and the incarnation is undecided
  restoring,     // the incarnation is decided, and some rank does not train yet
  capturing,     // some rank writes its slots
  replicating,   // transfers move pieces of a checkpoint that this incarnation captured
  committing,    // a checkpoint is whole in all its places, and no trainer knows that it is committed
  reprotecting,  // transfers move pieces of the checkpoint that this incarnation restored
  electing,      // the node that the leader's record names has no agent, or a frozen one
  idle,          // the job trains, and no other phase holds
  gathering,     // some node and the leader have not heard each other yet
  announcing,    // an incarnation is decided, and only the leader knows that
  encoding,      // parity of a checkpoint that this incarnation captured is being made
  decoding,      // lost pieces are being decoded from parity
  replacing,     // a standby node is the replacement of a lost member
  halting,       // the job is halted, and some rank is not frozen for good yet
  rejoining,     // some rank has rejoined the job in its process, and has not restored yet
  repeating,     // a node repeats an update instead of fetching a piece
  resizing,      // some rank does not train yet, and the restored checkpoint is that of another number of ranks
};
inline constexpr std::size_t phase_count = 19;
inline constexpr std::size_t first_phases = 15;  // among these a fault's phase is drawn
inline constexpr std::array<const char*, phase_count> phase_names = {
    "down",         "hello",    "deciding",  "restoring", "capturing",  "replicating", "committing",
    "reprotecting", "electing", "idle",      "gathering", "announcing", "encoding",    "decoding",
    "standing in",  "halting",  "rejoining", "repeating", "resizing"};

using Phases = std::bitset<phase_count>;

Phases current_phases(World& world);

}  // namespace ckpt::sim
