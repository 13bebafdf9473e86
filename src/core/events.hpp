// Events are what the driver tells the core. Effects are what the core asks its driver to do.
//
// The driver calls Node::handle(event, now) from one thread. It carries out all returned effects in order before it
// passes in the next event. It never blocks on an effect: slow work ends with an event.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/messages.hpp"

namespace ckpt::core {

// ---- Events ----

struct Tick {};  // at least every report_ms / 2

// A record as the store has it. Comes after a poll or watch, and after every compare-and-swap, whether it succeeded or
// not. Revision 0: the record does not exist.
struct LeaderRecordRead {
  std::uint64_t revision = 0;
  LeaderRecord record;
};
struct IncarnationRecordRead {
  std::uint64_t revision = 0;
  IncarnationRecord record;
};
// The answer to ReadAssignments: everything in the store under that name.
struct AssignmentsRead {
  AssignmentsName name;
  std::vector<RankAssignment> assignments;
};

struct MessageArrived {
  NodeId from = 0;
  Message message;
};

// A trainer claims a rank. The driver has already proven that every earlier writer of that rank on this node is dead.
struct TrainerHello {
  Rank rank = 0;
  std::uint64_t instance = 0;
  std::uint64_t incarnation = 0;  // 0: a new trainer; otherwise it attaches again after its agent restarted
  std::uint32_t world_size = 0;
  std::string main_shard;
  std::string private_shard;
};
struct TrainerExited {
  Rank rank = 0;
  std::uint64_t instance = 0;
};  // proven by its pidfd

struct RestoreAsked {
  Rank rank = 0;
  bool wants_gpu_replication = false;  // see RankReport
};                                     // answered by RestoreReady or RestoreFailed
struct RestoreDone {
  Rank rank = 0;
};  // its tensors hold the restored checkpoint (or it starts fresh)
// The rank's local segments exist, with memory reserved and touched. In order: the parts of its share, then its private
// shard.
struct SegmentsReady {
  Rank rank = 0;
  std::vector<std::string> shards;
  std::uint8_t slots = 2;  // so many has each of them
};

// The rank's words in its control page. If both changed, the driver posts Captured first.
struct Progress {
  Rank rank = 0;
  std::int64_t attempted = -1;
  std::int64_t capturing = -1;
};
// The rank has sealed the slots of its open grant, and they are valid.
struct Captured {
  Rank rank = 0;
  std::vector<PieceInfo> pieces;
};

enum class FetchResult : std::uint8_t { complete, corrupt, no_space, failed };
// The transfer is over, and nothing touches the slot any more.
struct FetchEnded {
  std::uint64_t fetch = 0;
  FetchResult result = FetchResult::failed;
  std::string trouble = {};  // why a read from storage failed
  PieceInfo made = {};       // the new piece, if parity was encoded for the first time
};
struct SlotReleased {
  SlotRef slot;
};  // the answer to DropSlot: nobody reads or writes the slot any more
struct PieceCorrupt {
  SlotRef slot;
};  // a reader found that its bytes do not match its digests

// What the driver observes by itself. The driver posts it at every change.
struct Observed {
  std::vector<Rank> stopped = {};                          // stopped trainers of this node (SIGSTOP, a debugger)
  std::vector<std::pair<Rank, std::uint8_t>> failed = {};  // ranks whose newest snapshot failed, with its ckpt_status
  bool coordination_fails = false;                         // the store cannot be read or written
  std::vector<NodeId> distrusted = {};                     // these nodes' listeners refused the token
  bool operator==(const Observed&) const = default;
};

// What the agent's watch sees. The driver posts it at every change.
struct RanksWatched {
  std::vector<RankStanding> in_trouble;
  std::vector<std::pair<Rank, std::uint32_t>> computing_ms;  // see RankReport
  bool operator==(const RanksWatched&) const = default;
};

// What storage offers: the pieces of every checkpoint that is whole there, judged without reading the pieces.
struct StorageListed {
  std::vector<PieceInfo> pieces;
  std::vector<std::string> unusable;     // checkpoints that exist but cannot be restored, with one sentence each
  std::uint64_t newest_incarnation = 0;  // newest incarnation that wrote anything there
  bool knows_incarnations = true;        // false: newer incarnations may have written there
  std::string trouble;                   // why this list may be incomplete; "" if it is complete
};
// The answer to StartWrite. If `trouble` is "", the pieces are on the medium.
struct WriteEnded {
  CheckpointId checkpoint;
  std::string trouble;
};
// The answer to FinalizeCheckpoint. If `trouble` is "", the checkpoint is whole on storage.
struct FinalizeEnded {
  CheckpointId checkpoint;
  std::string trouble;
};

using Event =
    std::variant<Tick, LeaderRecordRead, IncarnationRecordRead, AssignmentsRead, MessageArrived, TrainerHello,
                 TrainerExited, RestoreAsked, RestoreDone, SegmentsReady, Progress, Captured, FetchEnded, SlotReleased,
                 PieceCorrupt, StorageListed, WriteEnded, FinalizeEnded, Observed, RanksWatched>;

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
// Writes `assignments` first, in several records if needed. Writes the incarnation's record only when all of them are
// in the store. Empty: the store already has the rank assignments that the record names.
struct SwapIncarnationRecord {
  std::uint64_t expected_revision = 0;
  IncarnationRecord record;
  std::vector<RankAssignment> assignments = {};
};
// Answered by AssignmentsRead.
struct ReadAssignments {
  AssignmentsName name;
};
// Removes the rank assignments of all incarnations before this one, because no record names them any more.
struct RemoveAssignments {
  std::uint64_t before_incarnation = 0;
};

// Write this into the arena's node header before you carry out any later effect.
struct Persist {
  CheckpointId highest_commit;
  CheckpointId newest_seen;
  std::uint64_t epoch = 0;
  CheckpointId newest_damaged;
};

// The following effects go to trainers, through their control pages.
struct GrantSlots {
  Rank rank = 0;
  Share share;
  std::vector<SlotRef> slots;
};  // one slot per segment, in their order
// Add slots to the rank's segments until each has so many. Answered by SegmentsReady, or not at all where memory lacks.
struct AddSlots {
  Rank rank = 0;
  std::vector<std::string> shards;
  std::uint8_t slots = 0;
};
struct NotifyCommit {
  Rank rank = 0;
  CheckpointId committed;
};
// Tells the rank the newest checkpoint that is known to be on storage.
struct NotifyStored {
  Rank rank = 0;
  CheckpointId stored;
};
struct NotifyResume {
  Rank rank = 0;
  std::int64_t resume_at = 0;
};
// Comes before RestoreReady, once per incarnation, and again after the agent was restarted.
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

// A whole piece to restore from.
struct RestoreSource {
  SlotRef slot;
  Tier tier = Tier::none;
};
// The answer to RestoreAsked. Verdict restore: `main` has the parts of the main shard in order, `private_` the private
// shard. Verdict fresh: both are empty.
struct RestoreReady {
  Rank rank = 0;
  std::uint64_t incarnation = 0;
  Decision decision;
  Share share;  // what the rank captures from now on
  std::vector<RestoreSource> main;
  RestoreSource private_;
};
enum class RestoreError : std::uint8_t { superseded, refused, lost, mismatch };
struct RestoreFailed {
  Rank rank = 0;
  RestoreError error = RestoreError::lost;
  std::string text;
};

// Fetch `piece` from `source` (a node, storage_node or parity_node) into `slot`. The driver makes the slot's segment if
// it does not exist yet, large enough for the piece. It verifies all bytes. Answered by FetchEnded.
struct StartFetch {
  std::uint64_t fetch = 0;
  PieceInfo piece;
  NodeId source = 0;
  SlotRef slot;
  CodingInputs coding_inputs = {};  // with parity_node
};
struct CancelFetch {
  std::uint64_t fetch = 0;
};  // FetchEnded still comes

struct DropSlot {
  SlotRef slot;
};  // forget its piece; SlotReleased comes once no transfer reads it
struct ReleaseSegment {
  Rank rank = held_rank;
  std::string shard;
};  // empty and not wanted any more: free its memory

struct ListStorage {};  // answered by StorageListed
// Write the pieces in these slots to storage. The slots do not change until WriteEnded. First remove what this node
// wrote for `discarded`, because that checkpoint never became whole there.
struct StartWrite {
  CheckpointId checkpoint;
  std::vector<SlotRef> slots;
  Written discarded;
};
// Complete this checkpoint on storage: nodes have written all of its pieces. Answered by FinalizeEnded.
struct FinalizeCheckpoint {
  CheckpointId checkpoint;
  std::uint32_t world_size = 0;
  std::vector<std::string> shards;
  std::vector<CheckpointId> damaged;  // checkpoints on storage that proved damaged; they need not be kept
};

// News of a member for the operator's hook: it does not answer (lost), a standby node has its place (replaced), it is
// back (returned), or the job continues without it (released). A new leader repeats what still holds.
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
                            GrantSlots, AddSlots, NotifyCommit, NotifyStored, NotifyResume, NotifyReplicationGroup,
                            Fence, RestoreReady, RestoreFailed, StartFetch, CancelFetch, DropSlot, ReleaseSegment,
                            ListStorage, StartWrite, FinalizeCheckpoint, MemberChanged, Notice>;
using Effects = std::vector<Effect>;

}  // namespace ckpt::core
