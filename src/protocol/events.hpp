// What the driver tells the core (Event) and what the core asks of the driver (Effect).
//
// The driver calls Node::handle(event, now) from one thread and carries out the returned effects in order, each before
// it hands in the next event. It never blocks on one: whatever takes time comes back as an event.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "protocol/messages.hpp"

namespace ckpt::protocol {

// ---- Events ----

struct Tick {};  // at least every report_ms / 2

// A record as it is in the store: after a poll or watch, and after every compare-and-swap whether it won or not.
// Revision 0: the record does not exist.
struct LeaderRecordRead {
  std::uint64_t revision = 0;
  LeaderRecord record;
};
struct IncarnationRecordRead {
  std::uint64_t revision = 0;
  IncarnationRecord record;
};
// After ReadAssignments: all that is there under that name.
struct AssignmentsRead {
  AssignmentsName name;
  std::vector<RankAssignment> assignments;
};

struct MessageArrived {
  NodeId from = 0;
  Message message;
};

// A trainer claims a rank. The driver has proven every earlier writer of that rank on this node dead.
struct TrainerHello {
  Rank rank = 0;
  std::uint64_t instance = 0;
  std::uint64_t incarnation =
      0;  // 0: a new incarnation of this rank; else it re-attaches after its agent was restarted
  std::uint32_t world_size = 0;
  std::string main_shard;
  std::string private_shard;
};
struct TrainerExited {
  Rank rank = 0;
  std::uint64_t instance = 0;
};  // proven: its pidfd says so

struct RestoreAsked {
  Rank rank = 0;
  bool wants_gpu_replication = false;  // see RankReport
};                                     // waits for RestoreReady or RestoreFailed
struct RestoreDone {
  Rank rank = 0;
};  // its tensors hold the restored checkpoint (or it starts fresh)
// Local segments of the rank exist, reserved and touched: for the parts of its share, in order, and its private shard.
struct SegmentsReady {
  Rank rank = 0;
  std::vector<std::string> shards;
};

// What the rank's control words say. Posted after Captured when both changed.
struct Progress {
  Rank rank = 0;
  std::int64_t attempted = -1;
  std::int64_t capturing = -1;
};
// The slots of the outstanding grant were sealed and are valid.
struct Captured {
  Rank rank = 0;
  std::vector<PieceInfo> pieces;
};

enum class FetchResult : std::uint8_t { complete, corrupt, no_space, failed };
// The transfer is over: nothing touches the slot any more.
struct FetchEnded {
  std::uint64_t fetch = 0;
  FetchResult result = FetchResult::failed;
  std::string trouble = {};  // of a read from storage: why it failed
  PieceInfo made = {};       // complete, and parity that was never made before: what it has become
};
struct SlotReleased {
  SlotRef slot;
};  // after DropSlot: nobody reads or writes it any more
struct PieceCorrupt {
  SlotRef slot;
};  // its bytes do not match its digests (found by a reader)

// What the driver sees that no message tells. Posted with every change.
struct Observed {
  std::vector<Rank> stopped = {};                          // trainers here that are (SIGSTOP, a debugger)
  std::vector<std::pair<Rank, std::uint8_t>> failed = {};  // ckpt_status of their newest snapshots
  bool coordination_fails = false;                         // the store cannot be read or written
  std::vector<NodeId> distrusted = {};                     // at whose listeners the token was refused
  bool operator==(const Observed&) const = default;
};

// What storage offers: the pieces of every checkpoint on it that is whole, as far as one can tell without reading them.
struct StorageListed {
  std::vector<PieceInfo> pieces;
  std::vector<std::string> unusable;     // checkpoints that are there and cannot be restored from, a sentence each
  std::uint64_t newest_incarnation = 0;  // that anything there was written in
  bool knows_incarnations = true;        // false: there may be newer ones
  std::string trouble;                   // why there may be more than that, "" where that is all
};
// The pieces of StartWrite are on the medium, unless there was trouble.
struct WriteEnded {
  CheckpointId checkpoint;
  std::string trouble;
};
// The checkpoint of FinalizeCheckpoint is whole, unless there was trouble.
struct FinalizeEnded {
  CheckpointId checkpoint;
  std::string trouble;
};

using Event = std::variant<Tick, LeaderRecordRead, IncarnationRecordRead, AssignmentsRead, MessageArrived, TrainerHello,
                           TrainerExited, RestoreAsked, RestoreDone, SegmentsReady, Progress, Captured, FetchEnded,
                           SlotReleased, PieceCorrupt, StorageListed, WriteEnded, FinalizeEnded, Observed>;

// ---- Effects ----

struct Send {
  NodeId to = 0;
  Message message;
};

// Compare-and-swap of a store record; answered by LeaderRecordRead / IncarnationRecordRead.
struct SwapLeaderRecord {
  std::uint64_t expected_revision = 0;
  LeaderRecord record;
};
// With rank assignments, these first, in as many records as it takes: the incarnation's record is written only when all
// of them are there. Without, those that it names are there already.
struct SwapIncarnationRecord {
  std::uint64_t expected_revision = 0;
  IncarnationRecord record;
  std::vector<RankAssignment> assignments = {};
};
// Answered by AssignmentsRead.
struct ReadAssignments {
  AssignmentsName name;
};
// Of lives before this one: no record names them any more.
struct RemoveAssignments {
  std::uint64_t before_incarnation = 0;
};

// To be in the arena's node header before any later effect is carried out.
struct Persist {
  CheckpointId highest_commit;
  CheckpointId newest_seen;
  std::uint64_t epoch = 0;
  CheckpointId newest_damaged;
};

// To trainers, through their control words.
struct GrantSlots {
  Rank rank = 0;
  Share share;
  std::vector<SlotRef> slots;
};  // one per segment, in their order
struct NotifyCommit {
  Rank rank = 0;
  CheckpointId committed;
};
// The newest checkpoint of which it is known that it is on storage.
struct NotifyStored {
  Rank rank = 0;
  CheckpointId stored;
};
struct NotifyResume {
  Rank rank = 0;
  std::int64_t resume_at = 0;
};
// Before RestoreReady, once in an incarnation and for each incarnation of the agent.
struct NotifyReplicationGroup {
  Rank rank = 0;
  std::uint64_t incarnation = 0;
  ReplicationGroup replication;
};
struct Fence {
  Rank rank = 0;
  std::uint64_t instance = 0;
  std::uint64_t incarnation = 0;
  std::string text;
};

// A piece to restore from, whole.
struct RestoreSource {
  SlotRef slot;
  Tier tier = Tier::none;
};
// The answer to RestoreAsked. Verdict restore: the main shard's parts in order, and the private shard; fresh: none.
struct RestoreReady {
  Rank rank = 0;
  std::uint64_t incarnation = 0;
  Decision decision;
  Share share;  // that it captures from now on
  std::vector<RestoreSource> main;
  RestoreSource private_;
};
enum class RestoreError : std::uint8_t { superseded, refused, lost, mismatch };
struct RestoreFailed {
  Rank rank = 0;
  RestoreError error = RestoreError::lost;
  std::string text;
};

// Fetch `piece` from `source`, a node, storage_node or parity_node, into `slot`, whose segment the driver makes where
// it does not exist yet, with room for the piece. Verified on arrival; answered by FetchEnded.
struct StartFetch {
  std::uint64_t fetch = 0;
  PieceInfo piece;
  NodeId source = 0;
  SlotRef slot;
  CodingInputs coding_inputs = {};  // with parity_node
};
struct CancelFetch {
  std::uint64_t fetch = 0;
};  // still answered by FetchEnded

struct DropSlot {
  SlotRef slot;
};  // forget its piece; answered by SlotReleased once no transfer reads it
struct ReleaseSegment {
  Rank rank = held_rank;
  std::string shard;
};  // empty and no longer wanted: give its memory back

struct ListStorage {};  // answered by StorageListed
// Write the whole pieces in these slots to storage; they stay as they are until WriteEnded. What this node wrote of
// `discarded` is to be removed first: that checkpoint never became whole there.
struct StartWrite {
  CheckpointId checkpoint;
  std::vector<SlotRef> slots;
  Written discarded;
};
// All pieces of the checkpoint have been written, by one node or another: complete the checkpoint. Answered by
// FinalizeEnded.
struct FinalizeCheckpoint {
  CheckpointId checkpoint;
  std::uint32_t world_size = 0;
  std::vector<std::string> shards;
  std::vector<CheckpointId> damaged;  // checkpoints that need not be kept any longer
};

// For whoever runs the machines: a member of the incarnation does not answer any more; a standby node has its place; it
// is back after all; the job has gone on without it. A new leader tells again what still holds.
enum class Change : std::uint8_t { lost, replaced, returned, released };
struct MemberChanged {
  Change change = Change::lost;
  NodeId node = 0;
  NodeId by = no_node;  // with `replaced`
};

struct Notice {
  std::string text;
};  // for the log and for people

using Effect = std::variant<Send, SwapLeaderRecord, SwapIncarnationRecord, ReadAssignments, RemoveAssignments, Persist,
                            GrantSlots, NotifyCommit, NotifyStored, NotifyResume, NotifyReplicationGroup, Fence,
                            RestoreReady, RestoreFailed, StartFetch, CancelFetch, DropSlot, ReleaseSegment, ListStorage,
                            StartWrite, FinalizeCheckpoint, MemberChanged, Notice>;
using Effects = std::vector<Effect>;

}  // namespace ckpt::protocol
