// The words of the protocol. Plain values; nothing here or elsewhere in protocol/ knows clocks, sockets, threads or
// files.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "placement/pattern.hpp"
#include "placement/protection.hpp"
#include "protocol/checkpoint_id.hpp"
#include "protocol/shard_parts.hpp"

namespace ckpt::protocol {

using NodeId = std::uint32_t;
using Rank = std::uint32_t;
using TimeMs = std::int64_t;  // any monotonic origin; only differences matter

inline constexpr NodeId no_node = UINT32_MAX;
inline constexpr Rank no_rank = UINT32_MAX;
// Among the sources of a piece: persistent storage, and what it can be made of with the help of parity.
inline constexpr NodeId storage_node = UINT32_MAX - 1;
inline constexpr NodeId parity_node = UINT32_MAX - 2;

struct Config {
  NodeId node = 0;
  std::uint64_t arena_id = 0;        // of this node's arena; a fresh arena under an old node's id is told apart by it
  placement::Protection protection;  // copies of every shard, the rank's own included (m of GEMINI), and parity
  std::optional<placement::Strategy> strategy = {};  // none: group, and shards that ranks share are cut
  bool standby = false;                              // has no rank until it takes the place of a node that is lost
  std::string domain;              // of this node: outermost first, with '/' between levels; "" where nothing is known
  bool storage = false;            // there is persistent storage, or another source, that all nodes can restore from
  bool storage_writes = false;     // and checkpoints go there
  std::int64_t storage_every = 0;  // iterations from one checkpoint there to the next, 0: any number
  TimeMs storage_interval_ms = 0;  // likewise, time
  TimeMs storage_wait_ms = 30000;  // how long a restore decision waits for storage to say what it has
  std::uint8_t local_slots = 3;    // committed, replicating, capturing; with storage one more, being written
  std::uint8_t held_slots = 2;     // committed, arriving
  TimeMs report_ms = 250;          // a report at least so often: the heartbeat
  TimeMs node_timeout_ms = 2000;   // a node without reports for so long is missing
  TimeMs lease_ms = 2000;          // a leader that has not renewed for so long is replaced
  TimeMs node_wait_ms = 5000;      // how long a restore decision waits for missing nodes
  std::uint32_t pieces_per_ms = 256;   // the leader looks through so many: while few are reported, at every event
  std::uint32_t relay_from = 256;      // nodes: from so many on they report in groups
  TimeMs unprotected_after_ms = 5000;  // without a commit, at least: then the job is not protected
};

// What a parity piece is made of: pieces of its checkpoint, one for each member of a group of nodes.
struct ParitySource {
  std::string shard;  // "": that member has none
  std::uint64_t length_bytes = 0;
  std::uint64_t layout_bytes = 0;
  std::uint64_t root_digest = 0;
  bool operator==(const ParitySource&) const = default;
};
struct ParityManifest {
  std::uint32_t rows = 0;    // members whose loss it survives; 0: of no parity piece
  std::uint32_t member = 0;  // whose parity it is
  std::vector<ParitySource> sources;
  bool operator==(const ParityManifest&) const = default;
};

// A whole, verified piece: all bytes of one shard of one checkpoint, or parity of several.
struct PieceInfo {
  std::string shard;
  CheckpointId checkpoint;
  std::uint64_t length_bytes = 0;
  std::uint64_t layout_bytes = 0;
  std::uint64_t root_digest = 0;
  std::uint32_t world_size = 0;
  ParityManifest parity_manifest = {};
  bool is_parity() const { return parity_manifest.rows != 0; }
  bool operator==(const PieceInfo&) const = default;
};

// Where on this node a piece lies or will lie: slot `slot` of the segment that `rank` writes for `shard`, or, with rank
// held_rank, of the segment in which the agent holds a peer's shard.
inline constexpr Rank held_rank = UINT32_MAX;
struct SlotRef {
  Rank rank = held_rank;
  std::string shard;
  std::uint8_t slot = 0;
  auto operator<=>(const SlotRef&) const = default;
};

enum class Tier : std::uint8_t { none = 0, local = 1, peer = 2, decoded = 3, persistent = 4 };  // as ckpt_tier

}  // namespace ckpt::protocol
