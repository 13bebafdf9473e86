// The basic types of the protocol: numbers of nodes and ranks, names of slots, descriptions of pieces, and the core's
// configuration. All are plain values.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint_id.hpp"
#include "core/shard_parts.hpp"
#include "placement/pattern.hpp"
#include "placement/protection.hpp"

namespace ckpt::core {

using NodeId = std::uint32_t;
using Rank = std::uint32_t;
using TimeMs = std::int64_t;  // milliseconds of a monotonic clock with any origin; only differences matter

inline constexpr NodeId no_node = UINT32_MAX;
inline constexpr Rank no_rank = UINT32_MAX;
// Reserved node numbers. They name sources of a piece that are not nodes: storage, and encoding or decoding.
inline constexpr NodeId storage_node = UINT32_MAX - 1;
inline constexpr NodeId parity_node = UINT32_MAX - 2;

// When ranks capture main shards (the option `capture`). `jit` and `automatic` count on replicas: ranks on other nodes
// that have the same main shard.
enum class CaptureMode : std::uint8_t { every = 0, jit = 1, automatic = 2 };
inline constexpr CaptureMode last_capture_mode = CaptureMode::automatic;

struct Config {
  NodeId node = 0;
  std::uint64_t arena_id = 0;        // identifies this node's arena; an arena that was made anew has a new id
  placement::Protection protection;  // copies of every shard, the rank's own included (m of GEMINI), and parity
  std::optional<placement::Strategy> strategy = {};  // none: `group`, and shards that ranks share are cut
  bool standby = false;                              // true: a standby node, which has no rank
  std::string domain;              // failure domain: outermost first, '/' between levels; "" if not known
  bool storage = false;            // true: nodes can restore from storage or from another persist::CheckpointSource
  bool storage_writes = false;     // true: checkpoints are also written there
  std::int64_t storage_every = 0;  // write every so many iterations; 0: no such rule
  TimeMs storage_interval_ms = 0;  // write if the last write is this long ago; 0: no such rule
  TimeMs storage_wait_ms = 30000;  // how long a decision waits for storage to list its checkpoints
  // How many slots a rank has for each of its shards: one for the committed checkpoint, one for the capture, and with
  // storage one more for the checkpoint that is being written. local_slots_max: if commits take longer than an
  // iteration, one more for the checkpoint that is being replicated.
  std::uint8_t local_slots = 2;
  std::uint8_t local_slots_max = 3;
  std::uint8_t held_slots = 2;    // slots for each piece of a peer: for the committed one, and for one that arrives
  TimeMs report_ms = 250;         // the heartbeat: a node reports at least this often
  TimeMs node_timeout_ms = 2000;  // a node is missing after this long without a report
  TimeMs lease_ms = 2000;         // another node takes over if a leader has not renewed its record for so long
  TimeMs node_wait_ms = 5000;     // how long a decision waits for missing nodes
  // The leader waits (nodes + reported pieces) / pieces_per_ms ms from one reconciliation to the next, at most 1 s. So
  // in a small job it reconciles at every event.
  std::uint32_t pieces_per_ms = 256;
  std::uint32_t relay_from = 256;      // from this many nodes on, nodes report through relays
  TimeMs unprotected_after_ms = 5000;  // a shorter wait for a commit is no reason to call the job unprotected
  std::uint32_t capture_every = 1;     // ranks capture main shards in every so many iterations only
  CaptureMode capture = CaptureMode::every;
  bool halts = false;              // true: a suspicion whose culprits are known halts the incarnation
  TimeMs halt_decision_ms = 5000;  // how long a halt waits for ranks that are still in an update
  TimeMs halt_ms = 60000;          // how long it waits until all ranks that answer are captured
  std::uint32_t hang_factor = 3;   // a rank that computes so many times as long as the others is a straggler
};

// A shard that a parity piece was computed from. A parity piece has one for each member of its group.
struct ParitySource {
  std::string shard;  // "": that member has no shard
  std::uint64_t length_bytes = 0;
  std::uint64_t layout_bytes = 0;
  std::uint64_t root_digest = 0;
  bool operator==(const ParitySource&) const = default;
};
struct ParityManifest {
  std::uint32_t rows = 0;             // how many lost members the group survives; 0: the piece is not parity
  std::uint32_t member = 0;           // the member of the group that stores this parity
  std::vector<ParitySource> sources;  // by member
  bool operator==(const ParityManifest&) const = default;
};

// Describes a whole, verified piece of one checkpoint: a shard, a part of one, or parity.
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

// Names slot number `slot` of a segment on this node. The segment is the one into which `rank` captures `shard`. If
// `rank` is held_rank, it is the one in which the agent holds `shard` for peers.
inline constexpr Rank held_rank = UINT32_MAX;
struct SlotRef {
  Rank rank = held_rank;
  std::string shard;
  std::uint8_t slot = 0;
  auto operator<=>(const SlotRef&) const = default;
};

enum class Tier : std::uint8_t { none = 0, local = 1, peer = 2, decoded = 3, persistent = 4 };  // as ckpt_tier

}  // namespace ckpt::core
