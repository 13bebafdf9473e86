// RepeatedUpdates decides which copies of main shards a node makes by repeating the optimizer's step, and whether the
// result counts (docs/mechanisms.md). It knows no bytes: its caller, the agent, fetches the gradients, repeats the
// update and compares the digests. Pure. All calls come from one thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "core/events.hpp"

namespace ckpt::core {

// A piece, as a gradient record or a manifest describes it.
struct PieceShape {
  CheckpointId checkpoint;
  std::uint64_t length_bytes = 0;
  std::uint64_t layout_hash = 0;
  bool operator==(const PieceShape&) const = default;
};

// Returns why an update cannot be repeated, as a clause for people; "" if it can. The gradient record says that it
// leads from the checkpoint `base` to the piece `leads_to`. The wanted piece is `after`, and this node has `before`.
std::string why_not_repeated(CheckpointId base, const PieceShape& leads_to, const PieceShape& after,
                             const PieceShape& before);

// How an attempt to repeat an update ended.
enum class RepeatEnd : std::uint8_t {
  equal,    // the result has the owner's digests: it is the piece
  unequal,  // it has others, although the gradients are those that the owner sent
  damaged,  // the gradients arrived damaged
  missing   // there were no gradients, or they do not fit
};

// Judges the result of a repeated update. Only `equal` lets it count as a piece.
RepeatEnd judge_repeated(bool has_owners_digests, bool record_is_whole);

class RepeatedUpdates {
 public:
  // A piece that this node has.
  struct Held {
    SlotRef slot;
    CheckpointId checkpoint;
    std::uint64_t length_bytes = 0;
  };
  // What to do with the order to fetch a piece.
  struct Choice {
    bool is_candidate = false;   // it is a copy of a main shard for which no rank waits
    const Held* base = nullptr;  // repeat the update on this piece; null: fetch the whole piece
  };
  // `urgent`: ranks wait for the piece. `held`: the pieces in the segment of the order's slot.
  Choice choose(const StartFetch& order, bool urgent, std::span<const Held> held) const;

  // After so many updates of one shard in a row that gave other bytes than the owner's, none is repeated any more.
  static constexpr std::uint32_t vain_max = 3;
  // Returns true if no more updates of the shard are repeated from now on.
  bool ended(const std::string& shard, RepeatEnd end);

 private:
  std::map<std::string, std::uint32_t> vain_;  // by shard: updates in a row that gave other bytes
};

}  // namespace ckpt::core
