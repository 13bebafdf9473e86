// The messages between agents, and the records in the coordination store.
//
// A Report says all that a node has. A Directive says all that the leader wants of a node. Each carries the whole state
// and not a change. Senders repeat them as heartbeats, and receivers use only the newest. So lost, repeated or
// reordered messages do no harm, and a new leader needs nothing but Reports. Relays pack several messages into one
// (relay.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/halts.hpp"
#include "core/health.hpp"
#include "core/suspicions.hpp"
#include "core/types.hpp"

namespace ckpt::core {

// One trainer of the reporting node.
struct RankReport {
  Rank rank = 0;
  std::uint64_t instance = 0;     // random, one per engine: a restarted trainer has another one
  std::uint64_t incarnation = 0;  // incarnation that admitted it; 0: none yet
  std::uint32_t world_size = 0;
  std::string main_shard;
  std::string private_shard;
  bool waiting = false;                // it waits in restore()
  std::int64_t attempted = -1;         // last iteration offered to snapshot(), taken or not
  std::int64_t capturing = -1;         // iteration being captured, -1: none
  std::int64_t resume_at = 0;          // it takes no snapshot before this iteration, even under another leader
  bool wants_gpu_replication = false;  // it wants its main shard copied from GPU to GPU
  bool takes_shards = false;           // it can take over shards that other ranks captured
  bool is_stopped = false;             // its process is stopped (SIGSTOP, a debugger)
  std::uint8_t failed = 0;             // ckpt_status of its newest snapshot if that failed; a skip does not count
  std::uint32_t computing_ms = 0;      // how long it computes in an iteration, roughly; 0: not known
  FreezeAnswer freeze = {};            // what it answers to a halt
  std::optional<std::int64_t> freeze_at = {};  // the iteration that it was told to freeze at
  bool reports_trouble = false;     // a communication has failed in this incarnation, and no halt interrupted it
  std::uint32_t capture_every = 1;  // its option capture_every
  bool halts = false;
  CaptureMode capture = CaptureMode::every;
  bool operator==(const RankReport&) const = default;
};

// What a node has written to storage of its newest WriteOrder.
struct Written {
  CheckpointId checkpoint;
  std::uint64_t attempt = 0;
  std::vector<std::string> shards;
  std::string trouble;  // why the write failed; "": the shards are safely on storage
  bool operator==(const Written&) const = default;
};

// Why a node lacks a piece that it was ordered to fetch.
enum class FetchTrouble : std::uint8_t { none = 0, no_space = 1, failed = 2, corrupt = 3 };

// From a node to the leader: all that the node has.
struct Report {
  NodeId node = 0;
  std::uint64_t arena_id = 0;
  std::uint64_t agent_id = 0;   // this run of the agent; grows with each run
  std::uint64_t sequence = 0;   // counts within one run of the agent; the leader ignores older reports
  std::uint64_t epoch = 0;      // the epoch that the node obeys; a leader counts only reports of its own epoch
  std::uint64_t directive = 0;  // newest directive of that epoch that the node has received
  std::string domain;           // as Config::domain
  bool standby = false;         // as Config::standby
  CheckpointId highest_commit;  // newest commit the node ever heard of, including the incarnation's record
  CheckpointId newest_seen;     // newest checkpoint that was ever whole on the node
  CheckpointId newest_damaged;  // newest checkpoint of which damage ever destroyed a piece here
  std::uint64_t newest_known_incarnation =
      0;  // newest decided incarnation that the agent knows of, from the store, a leader or a trainer
  std::vector<RankReport> ranks;
  std::vector<RankStanding> in_trouble;  // the node's ranks that make no progress, also dead ones
  std::vector<PieceInfo> pieces;         // all whole pieces, each (shard, checkpoint) once
  bool storage = false;                  // as Config::storage
  Written written;
  std::vector<CheckpointId> damaged;  // checkpoints on storage that proved damaged when read
  std::string read_trouble;           // why reading from storage fails; "" while it succeeds
  std::uint64_t roll_call = 0;        // newest roll call heard from the leader of `epoch`; the report was made after it
  placement::Protection protection;   // as Config::protection
  FetchTrouble fetch_trouble = FetchTrouble::none;  // why an ordered piece is still missing
  NodeId fetch_source = no_node;                    // the source that failed
  bool coordination_fails = false;                  // the node cannot read or write the store
  bool operator==(const Report&) const = default;
};

enum class Verdict : std::uint8_t {
  undecided = 0,
  fresh = 1,     // nothing is stored: begin at iteration 0
  restore = 2,   // restore Decision::checkpoint
  lost = 3,      // committed state cannot be rebuilt from what is left
  mismatch = 4,  // what is stored has another world size
};

// A main shard that is stored in `of` parts.
struct Cut {
  std::string shard;
  std::uint32_t of = 1;
  bool operator==(const Cut&) const = default;
};

// The decision of an incarnation: what its ranks restore. The leader writes it once and never changes it.
struct Decision {
  Verdict verdict = Verdict::undecided;
  CheckpointId checkpoint;      // with Verdict::restore
  bool behind = false;          // a newer commit is known and lost
  bool status_unknown = false;  // silent nodes may know of a newer commit
  std::vector<Cut> cuts;        // the main shards that `checkpoint` has in parts; all others are whole
  std::string text;             // for people: the reason, with shards, checkpoints and nodes
  bool operator==(const Decision&) const = default;
};

struct Refusal {
  Rank rank = 0;
  std::uint64_t instance = 0;
  bool superseded = false;  // true: the rank has a newer process, or the job a newer incarnation
  std::uint64_t incarnation = 0;
  std::string text;
  bool operator==(const Refusal&) const = default;
};

// One rank of a replication group, the ranks that copy their pieces from GPU to GPU to each other, or make their nodes'
// parity from them.
struct ReplicationMember {
  NodeId node = 0;
  Rank rank = 0;
  std::string shard;
  bool operator==(const ReplicationMember&) const = default;
};
inline constexpr std::size_t replication_members_max = 32;
struct ReplicationGroup {
  // By rank, or with parity in the order of the parity group. Empty: pieces go from host to host.
  std::vector<ReplicationMember> members;
  std::uint32_t member = 0;  // the index of this rank in `members`
  std::string refusal;       // why `members` is empty
  std::uint32_t rows = 0;    // rows of parity that the members' GPUs make; 0: they copy whole pieces
  bool operator==(const ReplicationGroup&) const = default;
};

struct Admission {
  Rank rank = 0;
  std::uint64_t instance = 0;
  std::optional<Share> share = {};                   // once the incarnation is decided and placed
  std::optional<ReplicationGroup> replication = {};  // likewise, if the rank asked for it
  std::string adopts = {};      // the private shard that it restores instead of one of its own; "": its own
  std::vector<Cut> takes = {};  // see RankAssignment
  // True: each main shard of the job is on ranks of two nodes or more. The same for all ranks. False without `share`.
  bool is_replicated = false;
  bool operator==(const Admission&) const = default;
};

// What a node needs to encode or decode a piece: the parity manifest, and the nodes that have the other pieces. Several
// nodes may be listed for one piece.
struct CodingInputs {
  ParityManifest parity_manifest;  // of any member of the group
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
  PieceInfo piece;                            // root_digest 0: this parity was never encoded yet
  std::vector<NodeId> sources;                // best first: nodes that have it, storage_node, or parity_node
  std::optional<CodingInputs> coding_inputs;  // with parity_node
  NodeId chain_from = no_node;  // the node at which the piece's chains begin (chain_order.hpp); no_node: no chain
  bool operator==(const FetchOrder&) const = default;
};

// Pieces of a committed checkpoint that a node must write to storage. The node keeps them until they are written.
struct WriteOrder {
  CheckpointId checkpoint;
  std::uint64_t attempt = 0;  // grows with every order of a leader
  std::vector<std::string> shards;
  bool operator==(const WriteOrder&) const = default;
};

struct Member {
  NodeId node = 0;
  std::uint64_t arena_id = 0;
  bool operator==(const Member&) const = default;
};

// A standby node that holds what a lost member held, until the member comes back or the next incarnation begins.
struct Replacement {
  NodeId lost = 0;
  Member by;
  bool operator==(const Replacement&) const = default;
};

// From the leader to a node: all that the leader wants of the node.
struct Directive {
  NodeId leader = 0;
  std::uint64_t epoch = 0;
  std::uint64_t sequence = 0;  // counts within one epoch; a node ignores older directives than the one it obeys
  std::uint64_t acknowledged_agent = 0;   // agent_id of the node's newest report that the leader had received
  std::uint64_t acknowledged_report = 0;  // sequence of that report
  NodeId relay = no_node;  // where the node reports to: this relay; itself: it is the relay; no_node: the leader
  std::uint64_t incarnation = 0;
  Decision decision;                      // of this incarnation
  CheckpointId committed;                 // newest commit; at first the restored checkpoint, once it has all its copies
  std::vector<CheckpointId> abandoned;    // never complete: checkpoints of this incarnation newer than `committed`
  std::int64_t resume_at = 0;             // ranks need not take earlier iterations, because some rank has skipped them
  std::vector<Admission> admitted;        // the node's trainers that are members of this incarnation
  std::vector<Refusal> refused;           // the node's trainers that take no part, and why
  std::vector<FetchOrder> fetches;        // pieces that the node lacks, oldest checkpoint first
  std::vector<std::string> wanted;        // shards that the node should hold in this incarnation
  std::vector<Rank> missing_ranks;        // while undecided: these have not called restore() yet
  std::vector<NodeId> missing_nodes;      // while undecided: members of the last incarnation that do not answer
  std::vector<Replacement> replacements;  // of this incarnation
  std::uint32_t copies_now = 0;           // fewest copies that any shard has at the newest known commit
  std::uint32_t parity_now = 0;           // likewise: members that each parity group can still lose; 0: no parity
  std::string stranded;                   // why the decided checkpoint can no longer be restored; "" while it can
  std::string alarm;                      // silent data corruption or the like, "" if none
  std::uint64_t roll_call = 0;            // number within this epoch; the next report answers it
  bool reading_storage = false;           // the checkpoint to restore is still read into memory; ranks wait for it
  WriteOrder write;                       // no shards: nothing to write
  CheckpointId stored;                    // newest checkpoint on storage, as far as the leader knows
  std::uint64_t stored_skipped = 0;       // due checkpoints that were not written because storage was busy
  std::string storage_trouble;            // "" if none
  Health health;                          // the leader's verdict, for the whole job
  Suspicion suspicion;                    // which ranks hold training up
  Halt halt;                              // of this incarnation
  bool operator==(const Directive&) const = default;
};

// From a relay to the leader: the reports of its group, unchanged.
struct ReportBatch {
  std::vector<Report> reports;
  bool operator==(const ReportBatch&) const = default;
};

// Directives on their way through a relay: from the leader to the relay, or from the relay to a node. Without items,
// the batch only acknowledges the receiver's reports.
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

// Who leads. It is stored under the key "leader". While another node obeys the leader, the leader renews the record
// every lease_ms / 4.
struct LeaderRecord {
  std::uint64_t epoch = 0;
  NodeId node = no_node;
  std::uint64_t heartbeat = 0;
  bool operator==(const LeaderRecord&) const = default;
};

// Which node a rank runs on in an incarnation.
struct RankAssignment {
  Rank rank = 0;
  NodeId node = 0;
  std::uint64_t arena_id = 0;  // of that node
  std::string domain;          // of that node
  std::string main_shard;
  std::string private_shard;
  std::uint32_t restored_parts = 1;    // in how many parts the restored checkpoint has its main shard
  bool wants_gpu_replication = false;  // as reported; kept here, so that every leader forms the same replication groups
  // The shards that it takes over, instead of restoring its own: first a private shard, then main shards and further
  // private shards. Empty: it restores its own shards.
  std::vector<Cut> takes = {};
  bool operator==(const RankAssignment&) const = default;
};

// Names the rank assignments of an incarnation in the store. The name contains a digest of their content. There may be
// many assignments, so they have records of their own.
struct AssignmentsName {
  std::uint64_t incarnation = 0;  // 0: there are none
  std::uint32_t count = 0;        // how many ranks
  std::uint64_t digest = 0;
  auto operator<=>(const AssignmentsName&) const = default;
};

// Some of an incarnation's rank assignments, in order of rank. Stored under the key
// "rank_assignments/INCARNATION.DIGEST.NUMBER". They never change. The leader removes them once a later incarnation has
// begun.
struct AssignmentsRecord {
  std::vector<RankAssignment> assignments;
  bool operator==(const AssignmentsRecord&) const = default;
};
inline constexpr std::size_t assignments_per_record = 1024;       // they fit even with the longest names
inline constexpr std::size_t taking_assignments_per_record = 64;  // they fit even if all ranks take over shards
inline constexpr std::size_t taken_shards_max = 128;              // of one rank

// The current incarnation of the job. It is stored under the key "incarnation". A new leader first writes its epoch
// here. From then on every compare-and-swap of an older leader fails.
struct IncarnationRecord {
  std::uint64_t epoch = 0;
  std::uint64_t incarnation = 0;
  std::uint32_t world_size = 0;
  Decision decision;  // without cuts, which are in the rank assignments
  // All fields from here to `base` are about the newest incarnation that began.
  std::vector<Replacement> replacements;  // they may hold state
  // The next three decide who captures and holds what. So every leader computes the same placement.
  AssignmentsName assignments;
  std::optional<placement::Strategy> strategy;
  placement::Protection protection;
  CheckpointId restored;             // the checkpoint that was restored, committed or not
  std::uint32_t restored_ranks = 0;  // with the private shards of ranks 0 to restored_ranks - 1; 0: with all of them
  CheckpointId base;          // newest commit up to `restored`; nodes keep it until `restored` has all its copies
  CheckpointId first_commit;  // first commit of the newest incarnation that has one; proves that state existed
  bool operator==(const IncarnationRecord&) const = default;
};

}  // namespace ckpt::core
