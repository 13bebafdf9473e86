// What agents tell each other and what the coordination store holds.
//
// There are two things to say, and both are whole states rather than changes: a Report is all a node has, a Directive
// is all the leader wants of a node. Each is sent at every change and repeated as heartbeat, so loss, repetition and
// reordering need no further mechanism: the newest one counts. A new leader rebuilds itself from Reports alone. Relays
// carry several of either at once (relay.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "protocol/health.hpp"
#include "protocol/types.hpp"

namespace ckpt::protocol {

// One trainer on the reporting node.
struct RankReport {
  Rank rank = 0;
  std::uint64_t instance = 0;     // random, one per engine: tells a restarted trainer from the one before
  std::uint64_t incarnation = 0;  // of which it is a member, 0: not admitted yet
  std::uint32_t world_size = 0;
  std::string main_shard;
  std::string private_shard;
  bool waiting = false;                // has asked for restore() and not been served
  std::int64_t attempted = -1;         // last iteration offered to snapshot(), taken or not
  std::int64_t capturing = -1;         // iteration being captured, -1: none
  std::int64_t resume_at = 0;          // it takes no earlier one, whoever is leader now
  bool wants_gpu_replication = false;  // its main shard is to go from GPU to GPU
  bool is_stopped = false;             // its process is (SIGSTOP, a debugger)
  std::uint8_t failed = 0;             // ckpt_status of its newest snapshot where that failed; skips are no failures
  bool operator==(const RankReport&) const = default;
};

// What a node has made of its newest WriteOrder.
struct Written {
  CheckpointId checkpoint;
  std::uint64_t attempt = 0;
  std::vector<std::string> shards;
  std::string trouble;  // "": they are on the medium
  bool operator==(const Written&) const = default;
};

// Why a node does not have what it was ordered to fetch.
enum class FetchTrouble : std::uint8_t { none = 0, no_space = 1, failed = 2, corrupt = 3 };

// Node -> root.
struct Report {
  NodeId node = 0;
  std::uint64_t arena_id = 0;
  std::uint64_t agent_id = 0;   // this run of the agent, larger than that of earlier ones; `sequence` restarts
  std::uint64_t sequence = 0;   // of one run of the agent; an older report than the newest seen is ignored
  std::uint64_t epoch = 0;      // that the node obeys: the leader counts reports of its own epoch only
  std::uint64_t directive = 0;  // newest one of that epoch that the node has
  std::string domain;           // see Config
  bool standby = false;         // likewise
  CheckpointId highest_commit;  // newest commit the node ever heard of, also from the incarnation's record
  CheckpointId newest_seen;     // newest checkpoint that was ever whole on the node
  CheckpointId newest_damaged;  // newest checkpoint of which the node ever lost a piece to damage
  std::uint64_t newest_known_incarnation =
      0;  // newest decided incarnation that the agent knows of: by store, leader or trainers
  std::vector<RankReport> ranks;
  std::vector<PieceInfo> pieces;  // all whole pieces, each (shard, checkpoint) once
  bool storage = false;           // as Config::storage
  Written written;
  std::vector<CheckpointId> damaged;  // checkpoints on storage that proved so when they were read
  std::string read_trouble;           // why something could not be read from storage, until something could
  std::uint64_t roll_call = 0;        // newest one heard of the leader of `epoch`: all of the above is from after it
  placement::Protection protection;   // as Config::protection
  FetchTrouble fetch_trouble = FetchTrouble::none;  // of what it was ordered to fetch and has not
  NodeId fetch_source = no_node;                    // from whom
  bool coordination_fails = false;                  // it cannot read or write the store
  bool operator==(const Report&) const = default;
};

enum class Verdict : std::uint8_t {
  undecided = 0,
  fresh = 1,     // nothing is stored: start anew
  restore = 2,   // `checkpoint`
  lost = 3,      // state was committed and cannot be rebuilt from what is left
  mismatch = 4,  // what is stored is of another world size
};

// A main shard that is stored in `of` parts.
struct Cut {
  std::string shard;
  std::uint32_t of = 1;
  bool operator==(const Cut&) const = default;
};

// The one decision of an incarnation, written once.
struct Decision {
  Verdict verdict = Verdict::undecided;
  CheckpointId checkpoint;      // with Verdict::restore
  bool behind = false;          // a newer commit is known of and lost
  bool status_unknown = false;  // nodes that did not answer may know of a newer commit
  std::vector<Cut> cuts;        // main shards that `checkpoint` has in parts; all others it has whole
  std::string text;             // for people: why, with shards, checkpoints and nodes
  bool operator==(const Decision&) const = default;
};

struct Refusal {
  Rank rank = 0;
  std::uint64_t instance = 0;
  bool superseded = false;  // else: refused for the reason in `text`
  std::uint64_t incarnation = 0;
  std::string text;
  bool operator==(const Refusal&) const = default;
};

// A rank whose piece goes from GPU to GPU to all others of its group, and theirs to it.
struct ReplicationMember {
  NodeId node = 0;
  Rank rank = 0;
  std::string shard;
  bool operator==(const ReplicationMember&) const = default;
};
inline constexpr std::size_t replication_members_max = 32;
struct ReplicationGroup {
  std::vector<ReplicationMember> members;  // by rank; none: from host to host
  std::uint32_t member = 0;                // which of them the rank is
  std::string refusal;                     // why there are none
  bool operator==(const ReplicationGroup&) const = default;
};

struct Admission {
  Rank rank = 0;
  std::uint64_t instance = 0;
  std::optional<Share> share = {};                   // once the leader knows where all ranks are
  std::optional<ReplicationGroup> replication = {};  // likewise, where it was asked for
  bool operator==(const Admission&) const = default;
};

// What a piece can be made of: pieces of a parity group, and where they are. Each may be named with several nodes.
struct CodingInputs {
  ParityManifest parity_manifest;  // of the group, whichever member it names
  struct Source {
    std::string shard;
    NodeId node = 0;
    std::uint64_t root_digest = 0;
    bool operator==(const Source&) const = default;
  };
  std::vector<Source> sources;
  bool operator==(const CodingInputs&) const = default;
};

struct FetchOrder {
  PieceInfo piece;                            // root_digest 0: parity that was never made yet
  std::vector<NodeId> sources;                // that have it, best first; or storage_node; or parity_node
  std::optional<CodingInputs> coding_inputs;  // with parity_node
  bool operator==(const FetchOrder&) const = default;
};

// Pieces of a committed checkpoint that the node shall write to storage, and keep until it has.
struct WriteOrder {
  CheckpointId checkpoint;
  std::uint64_t attempt = 0;  // grows from one order to the next of a leader
  std::vector<std::string> shards;
  bool operator==(const WriteOrder&) const = default;
};

struct Member {
  NodeId node = 0;
  std::uint64_t arena_id = 0;
  bool operator==(const Member&) const = default;
};

// A standby node that holds what a lost member of the incarnation held, until that comes back or the job's next
// incarnation begins.
struct Replacement {
  NodeId lost = 0;
  Member by;
  bool operator==(const Replacement&) const = default;
};

// Leader -> node.
struct Directive {
  NodeId leader = 0;
  std::uint64_t epoch = 0;
  std::uint64_t sequence = 0;            // of one epoch; an older directive than the newest obeyed is ignored
  std::uint64_t acknowledged_agent = 0;  // the node's report that the leader had heard: agent_id and sequence
  std::uint64_t acknowledged_report = 0;
  NodeId relay = no_node;  // through whom the node is to report, itself for its group; no_node: to the leader
  std::uint64_t incarnation = 0;
  Decision decision;       // of this incarnation
  CheckpointId committed;  // newest checkpoint with all its copies: each commit, and first of all the restored one
  std::vector<CheckpointId> abandoned;    // of this incarnation, newer than `committed`, that will never be complete
  std::int64_t resume_at = 0;             // snapshots of earlier iterations are pointless: some rank has skipped them
  std::vector<Admission> admitted;        // the node's trainers that are members of this incarnation
  std::vector<Refusal> refused;           // the node's trainers that are not, and why
  std::vector<FetchOrder> fetches;        // pieces the node should have and has not, oldest checkpoint first
  std::vector<std::string> wanted;        // shards the node should hold, in this incarnation's placement
  std::vector<Rank> missing_ranks;        // while undecided: have not called restore() yet
  std::vector<NodeId> missing_nodes;      // while undecided: members of the last incarnation that do not answer
  std::vector<Replacement> replacements;  // of this incarnation
  std::uint32_t copies_now = 0;           // fewest copies of any shard at the newest commit that reports tell of
  std::uint32_t parity_now = 0;      // likewise: how many members each parity group can still lose; 0 without parity
  std::string stranded;              // why the decided checkpoint cannot be brought home any more, "" while it can
  std::string alarm;                 // silent corruption or the like, "" if none
  std::uint64_t roll_call = 0;       // of this epoch; a report answers it
  bool reading_storage = false;      // what is to be restored is not in memory yet: nobody goes on before it is
  WriteOrder write;                  // no shards: nothing is to be written
  CheckpointId stored;               // newest checkpoint on storage, as far as the leader knows
  std::uint64_t stored_skipped = 0;  // checkpoints that were due there and passed over, because it was busy
  std::string storage_trouble;       // "" if none
  Health health;                     // the leader's verdict, for the whole job
  bool operator==(const Directive&) const = default;
};

// Relay -> leader: as they came.
struct ReportBatch {
  std::vector<Report> reports;
  bool operator==(const ReportBatch&) const = default;
};

// Leader -> relay -> node. Without items: reports that were to be passed on have come.
struct DirectiveBatch {
  struct Item {
    NodeId to = 0;
    Directive directive;
    bool operator==(const Item&) const = default;
  };
  std::vector<Item> items;
  bool operator==(const DirectiveBatch&) const = default;
};

using Message = std::variant<Report, Directive, ReportBatch, DirectiveBatch>;

// Store key "leader": who is root. Renewed (heartbeat) every lease_ms / 4, while any other node obeys.
struct LeaderRecord {
  std::uint64_t epoch = 0;
  NodeId node = no_node;
  std::uint64_t heartbeat = 0;
  bool operator==(const LeaderRecord&) const = default;
};

// A rank of an incarnation, and where it sits.
struct RankAssignment {
  Rank rank = 0;
  NodeId node = 0;
  std::uint64_t arena_id = 0;  // of the node
  std::string domain;          // likewise
  std::string main_shard;
  std::string private_shard;
  std::uint32_t restored_parts = 1;    // in how many the checkpoint that is restored has its main shard
  bool wants_gpu_replication = false;  // as reported
  bool operator==(const RankAssignment&) const = default;
};

// What the rank assignments of an incarnation are called in the store, where they are in records of their own: all that
// is in proportion to the nodes. It follows from what they say (rank_assignments.hpp).
struct AssignmentsName {
  std::uint64_t incarnation = 0;  // 0: there are none
  std::uint32_t count = 0;        // of ranks
  std::uint64_t digest = 0;
  auto operator<=>(const AssignmentsName&) const = default;
};

// Store keys "rank_assignments/INCARNATION.DIGEST.NUMBER": some of them at a time, by rank. Never changed, and removed
// when a later incarnation has begun.
struct AssignmentsRecord {
  std::vector<RankAssignment> assignments;
  bool operator==(const AssignmentsRecord&) const = default;
};
inline constexpr std::size_t assignments_per_record = 1024;  // with the longest names they have less than a record may

// Store key "incarnation": the current incarnation of the job. A leader of epoch e first writes its epoch here, so that
// a compare-and-swap by an older leader fails: fencing needs nothing else.
struct IncarnationRecord {
  std::uint64_t epoch = 0;
  std::uint64_t incarnation = 0;
  std::uint32_t world_size = 0;
  Decision decision;  // without cuts: the rank assignments tell them
  std::vector<Replacement>
      replacements;  // for members of the newest incarnation that began: the nodes that may hold state
  // Who captures and holds what in that incarnation follows from these alone: every leader of the incarnation finds the
  // same.
  AssignmentsName assignments;
  std::optional<placement::Strategy> strategy;
  placement::Protection protection;
  CheckpointId restored;  // what it went on from, commit or not
  CheckpointId base;  // newest commit that it went on from: the checkpoint it restored, once that has all its copies
  CheckpointId first_commit;  // newest of each incarnation's first commits: state existed, even when every node is gone
  bool operator==(const IncarnationRecord&) const = default;
};

}  // namespace ckpt::protocol
