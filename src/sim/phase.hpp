// Phases say what a simulated job is doing, so that a fault can aim at a moment. Several phases may hold at once.
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
  deciding,      // all ranks have asked, and the incarnation is undecided
  restoring,     // it is decided, and some rank does not train yet
  capturing,     // some rank writes its slots
  replicating,   // pieces of a checkpoint that this incarnation captured are on their way
  committing,    // a checkpoint is whole in all its places, and no trainer knows that it is committed
  reprotecting,  // pieces of the checkpoint that this incarnation restored are on their way, home or to new places
  electing,      // no node that could lead is leader
  idle,          // training, and none of the others
  gathering,     // some node and the leader have not heard each other yet
  announcing,    // an incarnation is decided, and only the leader knows
  encoding,      // parity of a checkpoint that this incarnation captured is being made
  decoding,      // lost pieces are being decoded from parity
  replacing,     // a standby node has the place of a lost one
};
inline constexpr std::size_t phase_count = 15;
inline constexpr std::array<const char*, phase_count> phase_names = {
    "down",     "hello", "deciding",  "restoring",  "capturing", "replicating", "committing", "reprotecting",
    "electing", "idle",  "gathering", "announcing", "encoding",  "decoding",    "standing in"};

using Phases = std::bitset<phase_count>;

Phases current_phases(World& world);

}  // namespace ckpt::sim
