// Events and effects are the interface of the core, the part of the agent that makes the protocol's decisions. An event
// tells the core what happened. An effect asks the core's driver, the agent or the simulator, to do something.
//
// The driver calls Node::handle(event, now) from one thread. It carries out the returned effects in order, and then
// passes in the next event. It never blocks on an effect: when slow work ends, the driver tells the core with an event.
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

struct Tick {};  // time has passed; the driver posts it at least every report_ms / 2

// The leader's record, as the store has it. The driver posts it after each read of the store, and after each
// SwapLeaderRecord, whether that succeeded or not. Revision 0: the store has no such record.
struct LeaderRecordRead {
  std::uint64_t revision = 0;
  LeaderRecord record;
};
struct IncarnationRecordRead {
  std::uint64_t revision = 0;
  IncarnationRecord record;
};
// The answer to ReadAssignments: the rank assignments that the store has under `name`. Empty if it has none.
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
  std::uint64_t instance = 0;     // tells its engine from all others; random
  std::uint64_t incarnation = 0;  // the one that it takes part in, if it connects to a restarted agent; 0: it is new
  std::uint32_t world_size = 0;   // how many ranks the job has
  std::string main_shard;
  std::string private_shard;
  std::uint32_t capture_every = 1;  // its option capture_every; all ranks need the same
  bool halts = false;
  CaptureMode capture = CaptureMode::every;
};
// A trainer's process has ended. The driver knows that from its pidfd.
struct TrainerExited {
  Rank rank = 0;
  std::uint64_t instance = 0;
};

// A trainer has called restore(). Answered by RestoreReady or RestoreFailed.
struct RestoreAsked {
  Rank rank = 0;
  bool wants_gpu_replication = false;  // see RankReport
  bool takes_shards = false;           // likewise
};
// The rank's tensors have the restored checkpoint, or the rank starts fresh.
struct RestoreDone {
  Rank rank = 0;
};
// The segments for the rank's own shards exist. Their memory is reserved and touched. `shards`: the names of the parts
// in the rank's share, in order, then of its private shard.
struct SegmentsReady {
  Rank rank = 0;
  std::vector<std::string> shards;
  std::uint8_t slots = 2;          // how many slots each segment has, not counting a spare slot
  std::uint8_t private_slots = 0;  // how many the private shard's segment has if one is a spare slot; otherwise 0
};

// The rank's progress, as its control page shows it. If a capture has ended, the driver posts Captured first.
struct Progress {
  Rank rank = 0;
  std::int64_t attempted = -1;  // last iteration offered to snapshot(), taken or not; -1: none
  std::int64_t capturing = -1;  // iteration of the running capture; -1: none
};
// A trainer captured a snapshot: it sealed the slots of its grant, and the pieces in them are valid.
struct Captured {
  Rank rank = 0;
  std::vector<PieceInfo> pieces;
  bool in_spare = false;  // true: the private shard is in the grant's spare slot
};
// A trainer's answer to a halt. The driver posts it after Captured.
struct FreezeAnswered {
  Rank rank = 0;
  FreezeAnswer answer;
};
// The rank's training thread says that a communication has failed although no halt interrupted it: for example, a peer
// closed the connection.
struct TroubleReported {
  Rank rank = 0;
};
// A trainer has ended, and the slots of its grant have pieces that it sealed but did not report as captured: its newest
// private shard, or more pieces of that iteration. The driver posts this before TrainerExited.
struct LeftBehind {
  Rank rank = 0;
  std::vector<std::pair<SlotRef, PieceInfo>> pieces;
};

enum class FetchResult : std::uint8_t { complete, corrupt, no_space, failed };
// The answer to StartFetch or CancelFetch: the fetch has ended, and nothing accesses its slot any more.
struct FetchEnded {
  std::uint64_t fetch = 0;  // number of the fetch, from StartFetch
  FetchResult result = FetchResult::failed;
  std::string trouble = {};  // why a read from storage failed; "" otherwise
  PieceInfo made = {};       // the new piece, if parity was encoded for the first time
};
// The answer to DropSlot: nobody reads or writes the slot any more.
struct SlotReleased {
  SlotRef slot;
};
// A reader found that the bytes of the slot's piece do not match its digests.
struct PieceCorrupt {
  SlotRef slot;
};

// The state of this node as the driver sees it. The driver posts all fields whenever one has changed.
struct Observed {
  std::vector<Rank> stopped = {};                          // stopped trainers of this node (SIGSTOP, a debugger)
  std::vector<std::pair<Rank, std::uint8_t>> failed = {};  // ranks whose newest snapshot failed, each with ckpt_status
  bool coordination_fails = false;                         // true: the store cannot be read or written
  std::vector<NodeId> distrusted = {};                     // nodes whose listeners refused this node's token
  bool operator==(const Observed&) const = default;
};

// What the agent sees of how its ranks train. The driver posts it at every change.
struct RanksWatched {
  std::vector<RankStanding> in_trouble;                      // its ranks that are in trouble
  std::vector<std::pair<Rank, std::uint32_t>> computing_ms;  // see RankReport
  bool operator==(const RanksWatched&) const = default;
};

// The answer to ListStorage: the pieces of every complete checkpoint on storage. Their bytes
// were not read yet, so some may prove damaged.
struct StorageListed {
  std::vector<PieceInfo> pieces;
  std::vector<std::string> unusable;     // a sentence for each checkpoint there that cannot be restored
  std::uint64_t newest_incarnation = 0;  // newest incarnation that has written to storage
  bool knows_incarnations = true;        // false: newer incarnations may have written to storage, too
  std::string trouble;                   // why this list may be incomplete; "" if it is complete
};
// The answer to StartWrite. If `trouble` is "", the pieces are safely on storage.
struct WriteEnded {
  CheckpointId checkpoint;
  std::string trouble;
};
// The answer to FinalizeCheckpoint. If `trouble` is "", the checkpoint on storage is complete.
struct FinalizeEnded {
  CheckpointId checkpoint;
  std::string trouble;
};

using Event = std::variant<Tick, LeaderRecordRead, IncarnationRecordRead, AssignmentsRead, MessageArrived, TrainerHello,
                           TrainerExited, RestoreAsked, RestoreDone, SegmentsReady, Progress, Captured, FreezeAnswered,
                           TroubleReported, LeftBehind, FetchEnded, SlotReleased, PieceCorrupt, StorageListed,
                           WriteEnded, FinalizeEnded, Observed, RanksWatched>;

// ---- Effects ----

struct Send {
  NodeId to = 0;
  Message message;
};

// Replaces the leader's record if the store still has it at `expected_revision`. Answered by LeaderRecordRead.
struct SwapLeaderRecord {
  std::uint64_t expected_revision = 0;
  LeaderRecord record;
};
// Replaces the incarnation's record if the store still has it at `expected_revision`. Answered by
// IncarnationRecordRead. The driver first writes `assignments`, and writes the record only when the store has all of
// them. If `assignments` is empty, the store already has those that the record names.
struct SwapIncarnationRecord {
  std::uint64_t expected_revision = 0;
  IncarnationRecord record;
  std::vector<RankAssignment> assignments = {};
};
// Reads rank assignments from the store. Answered by AssignmentsRead.
struct ReadAssignments {
  AssignmentsName name;
};
// Removes from the store the rank assignments of all earlier incarnations. No record names them any more.
struct RemoveAssignments {
  std::uint64_t before_incarnation = 0;
};

// Writes into the node's arena what the node must not forget. The driver does that before it carries out any later
// effect. The fields are those of Recovered (node.hpp).
struct Persist {
  CheckpointId highest_commit;
  CheckpointId newest_seen;
  std::uint64_t epoch = 0;
  CheckpointId newest_damaged;
};

// A grant: lets a trainer write its next snapshot into these slots. This effect and the next ones, up to Fence, go to a
// trainer through its control page.
struct GrantSlots {
  Rank rank = 0;
  Share share;
  std::vector<SlotRef> slots;  // one slot of each segment, in the order of SegmentsReady::shards
  // The spare slot, if the rank has one. The snapshot's private shard is in this slot or in the last of `slots`. The
  // other one of the two stays granted, and is the spare slot of the next grant.
  std::optional<SlotRef> spare = {};
};
// Adds slots to the rank's segments until each segment has `slots` of them, not counting a spare slot. Answered by
// SegmentsReady. If there is not enough memory, no answer comes.
struct AddSlots {
  Rank rank = 0;
  std::vector<std::string> shards;
  std::uint8_t slots = 0;
};
// Tells a trainer the newest committed checkpoint.
struct NotifyCommit {
  Rank rank = 0;
  CheckpointId committed;
};
// Tells a trainer the newest checkpoint that is complete on storage.
struct NotifyStored {
  Rank rank = 0;
  CheckpointId stored;
};
// Tells a trainer from which iteration on it takes snapshots again.
struct NotifyResume {
  Rank rank = 0;
  std::int64_t resume_at = 0;
};
// Tells a trainer that its incarnation is halted. Comes once more when the iteration is decided.
struct NotifyHalt {
  Rank rank = 0;
  std::uint64_t halt = 0;                      // the halt's number
  std::optional<std::int64_t> iteration = {};  // at which ranks freeze; none: not decided yet
};
// Tells a trainer the other members of its replication group. The core orders this before RestoreReady, once in each
// incarnation, and again after the agent has restarted.
struct NotifyReplicationGroup {
  Rank rank = 0;
  std::uint64_t incarnation = 0;
  ReplicationGroup replication;
};
// Tells a trainer that its rank belongs to another process or to a later incarnation. Its calls then fail with `text`.
struct Fence {
  Rank rank = 0;
  std::uint64_t instance = 0;
  std::uint64_t incarnation = 0;
  std::string text;
};

// A slot on this node with a whole piece that the rank restores.
struct RestoreSource {
  SlotRef slot;
  Tier tier = Tier::none;  // where the piece was before it was in this slot
};
// The answer to RestoreAsked: what the trainer restores. If the verdict is `restore`, `main` has the parts of the main
// shard in order, and `private_` has the private shard. If the rank takes over shards, `main` is empty, `private_` has
// the first private shard that it takes over, and `taken` has all other pieces that it takes over. If the verdict is
// `fresh`, all are empty.
struct RestoreReady {
  Rank rank = 0;
  std::uint64_t incarnation = 0;
  Decision decision;
  Share share;  // what the rank captures from now on
  std::vector<RestoreSource> main;
  RestoreSource private_;
  bool is_replicated = false;  // see Admission
  std::vector<RestoreSource> taken = {};
};
// The pieces that a rank waits for, of the checkpoint that its incarnation restores.
struct AwaitedPieces {
  std::uint64_t incarnation = 0;  // 0: the rank waits for nothing that is known
  CheckpointId checkpoint;
  std::vector<SlotRef> filling;  // slots that fetches are filling
  std::vector<SlotRef> whole;    // slots that have their piece
};
enum class RestoreError : std::uint8_t { superseded, refused, lost, mismatch };
// The other answer to RestoreAsked. `text` says to people why restore() fails.
struct RestoreFailed {
  Rank rank = 0;
  RestoreError error = RestoreError::lost;
  std::string text;
};

// Fetches `piece` from `source` (a node, storage_node or parity_node) into `slot`. If the slot's segment does not exist
// yet, the driver makes one that is large enough. The driver verifies all bytes. Answered by FetchEnded.
struct StartFetch {
  std::uint64_t fetch = 0;  // number of the fetch
  PieceInfo piece;
  NodeId source = 0;
  SlotRef slot;
  CodingInputs coding_inputs = {};  // if `source` is parity_node
  NodeId chain_from = no_node;      // FetchOrder::chain_from
};
// Cancels a fetch. FetchEnded still comes.
struct CancelFetch {
  std::uint64_t fetch = 0;
};

// Forgets the slot's piece. Answered by SlotReleased once no transfer reads the slot.
struct DropSlot {
  SlotRef slot;
};
// Frees the memory of a segment that has no piece and is not needed any more.
struct ReleaseSegment {
  Rank rank = held_rank;
  std::string shard;
};

struct ListStorage {};  // answered by StorageListed
// Writes the pieces in these slots to storage. Answered by WriteEnded. Until then, the slots do not change. First the
// driver removes what this node wrote for `discarded`, a checkpoint that never became complete on storage.
struct StartWrite {
  CheckpointId checkpoint;
  std::vector<SlotRef> slots;
  Written discarded;
};
// Makes a checkpoint on storage complete, after nodes have written all of its pieces. Answered by FinalizeEnded.
struct FinalizeCheckpoint {
  CheckpointId checkpoint;
  std::uint32_t world_size = 0;
  std::vector<std::string> shards;
  std::vector<CheckpointId> damaged;  // checkpoints on storage that are known to be damaged; they may be removed
};

// News about a member, for the operator's hook. A new leader repeats the news that still hold.
// lost: the member does not answer. replaced: a standby node is its replacement. returned: the member is back.
// released: the job continues without the member.
enum class Change : std::uint8_t { lost, replaced, returned, released };
struct MemberChanged {
  Change change = Change::lost;
  NodeId node = 0;
  NodeId by = no_node;  // the replacement, if the change is `replaced`
};

// A sentence for people, for the event log.
struct Notice {
  std::string text;
};

using Effect =
    std::variant<Send, SwapLeaderRecord, SwapIncarnationRecord, ReadAssignments, RemoveAssignments, Persist, GrantSlots,
                 AddSlots, NotifyCommit, NotifyStored, NotifyResume, NotifyHalt, NotifyReplicationGroup, Fence,
                 RestoreReady, RestoreFailed, StartFetch, CancelFetch, DropSlot, ReleaseSegment, ListStorage,
                 StartWrite, FinalizeCheckpoint, MemberChanged, Notice>;
using Effects = std::vector<Effect>;

}  // namespace ckpt::core
