// Invariants checks I1 to I5, I11 and parts of I6 in a simulated run (docs/simulator.md has the invariants). Other
// checks have the rest: liveness_check.hpp, commit_rate_check.hpp, protection.hpp, watch_check.hpp, halt_check.hpp.
// Each function below takes one fact at the moment when it becomes true, and throws Violation if the fact breaks an
// invariant. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/leader/rank_assignments.hpp"
#include "core/node.hpp"
#include "sim/event_queue.hpp"
#include "sim/history.hpp"
#include "sim/memory.hpp"

namespace ckpt::sim {

class Trainer;
class World;
struct Machine;

struct Violation {
  std::string invariant;  // "I1" ... "I13", or "core" if the core threw
  std::string text;
};

// Counts what happened in a run, so that people notice if the simulator does nothing.
struct Tally {
  std::uint64_t commits = 0;       // checkpoints that were committed
  std::uint64_t restores = 0;      // ranks that restored
  std::uint64_t from_peer = 0;     // ranks that restored a part from a peer
  std::uint64_t decoded = 0;       // ranks that restored a part decoded from parity
  std::uint64_t from_storage = 0;  // ranks that restored a part from storage
  std::uint64_t replaced = 0;      // standby nodes that became replacements
  std::uint64_t stored = 0;        // checkpoints that were completed on storage
  // Incarnations, by what was decided. The second line counts restores with Decision::behind or status_unknown.
  std::uint64_t decided_fresh = 0, decided_restore = 0, decided_lost = 0;
  std::uint64_t decided_behind = 0, decided_unknown = 0;
  std::uint64_t decided_elastic = 0;  // restores of a checkpoint that another number of ranks captured
  std::uint64_t decided_resplit = 0;  // or as many, which had split the state in another way
  std::uint64_t elections = 0;
  std::uint64_t alarms = 0;  // runs in which silent corruption was reported
  std::uint64_t quarantined = 0;
  std::uint64_t restarts = 0;
  std::uint64_t given_up = 0;
  std::uint64_t relayed = 0;        // reports that a relay passed on
  std::uint64_t notified_lost = 0;  // members that were said to be lost
  std::uint64_t named = 0;          // causes of hangs that every leader had to name
  std::uint64_t halts = 0;          // incarnations that were halted
  std::uint64_t late_captures = 0;  // ranks that were captured in a halted incarnation
  std::uint64_t late_restores = 0;  // ranks that restored what was captured so
  std::uint64_t rejoined = 0;       // processes that rejoined a halted job
  std::uint64_t kept = 0;           // of these, how many kept their tensors
  std::uint64_t started_anew = 0;   // ranks that were started anew while others stayed
  std::uint64_t repeated = 0, repeated_in_vain = 0, not_repeated = 0;  // updates that nodes had the gradients of
  TimeMs slowest_recovery_ms = 0;  // longest time from the last fault's end until the job had recovered
  TimeMs slowest_commit_ms = 0;    // longest time from one commit to the next while all was well

  void add(const Tally& other);
};

class Invariants {
 public:
  explicit Invariants(World& world);

  // What the core does with memory. A violation is one of I5, or of I4 if an older writer still uses the slot.
  void granting(const Machine& machine, const SlotRef& ref, std::uint64_t instance);
  void filling(const Machine& machine, const SlotRef& ref);
  void capturing(const Machine& machine, const SlotRef& ref, std::uint64_t instance);
  void serving(const Machine& machine, const SlotRef& ref, const std::string& shard, CheckpointId checkpoint);
  void dropping(const Machine& machine, const SlotRef& ref);
  void writing(const Machine& machine, const SlotRef& ref, CheckpointId checkpoint);
  void releasing(const Machine& machine, Rank rank, const std::string& shard);

  // What happens to checkpoints (I1-I4).
  void captured(const PieceInfo& piece) { history_.captured(piece); }
  void counted(const Machine& machine, const PieceInfo& piece);
  void sending(const Machine& machine, const core::Message& message);
  void persisting(const Machine& machine, const core::Persist& persist);
  void stored_notified(const Machine& machine, Rank rank, CheckpointId checkpoint) const;
  void commit_notified(const Machine& machine, Rank rank, CheckpointId checkpoint);
  void restore_offered(const Machine& machine, std::uint64_t instance, const core::RestoreReady& ready);
  void restore_refused(const core::RestoreFailed& failed) const;
  void restore_hangs(const Trainer& trainer);
  void restored(const Trainer& trainer, const core::RestoreReady& ready);
  void storing(const Machine& leader, const core::FinalizeCheckpoint& step);
  void writing_leader(const Machine& machine, const core::LeaderRecord& record);
  void leader_written(NodeId by, const core::LeaderRecordRead& now);
  // Judges the record that a leader is about to write, by what the leader can know now. Returns nothing if the record
  // is right. Otherwise returns the violation, which counts only if the store then writes the record.
  std::optional<Violation> judge(const Machine& leader, const core::IncarnationRecord& record) const;
  // When a leader asked the store to write a record, and what judge() said then.
  struct Asked {
    TimeMs at = 0;
    std::optional<Violation> judgement = {};
  };
  void incarnation_written(NodeId by, const core::IncarnationRecordRead& before, const core::IncarnationRecordRead& now,
                           const Asked& asked);
  void member_notified(const Machine& leader, const core::MemberChanged& changed);

  // Call these before and after every event that a core handles. They check I4.
  void before(const Machine& machine, const core::Node& node, const core::Event& event);
  void after(const Machine& machine, const core::Node& node, const core::Event& event);

  // Faults report what they did.
  void memory_lost(Machine& machine);
  void leader_record_spoiled() { leader_record_spoiled_ = true; }
  void incarnation_record_spoiled();
  void incarnation_read(const core::IncarnationRecord& record);  // a running agent has read this record
  void bit_flipped(const Slot& slot) { history_.damaged(slot.header.checkpoint); }
  void forget_everything();

  const History& history() const { return history_; }
  const Tally& tally() const { return tally_; }
  // How many copies of a shard the placement asks for in this incarnation. Fewer than configured if nodes are too few.
  std::size_t copies_wanted(std::uint64_t incarnation) const;
  // True if every shard of the checkpoint is now whole on at least `copies` nodes.
  bool is_whole(CheckpointId checkpoint, std::size_t copies) const;
  // The functions below take a set of nodes and look only at the pieces that these have. Null: at those of all nodes.
  using Nodes = std::set<NodeId>;
  // True if these nodes have different bytes of a shard of the checkpoint. A node that took no part in the incarnation
  // does not count if it contradicts one that did.
  bool is_disputed(CheckpointId checkpoint, const core::IncarnationRecord& incarnation_record,
                   const Nodes* among) const;
  // True if the incarnation keeps parity. False also if it has too few nodes for that.
  bool wants_parity(std::uint64_t incarnation) const;
  // True if each of these shards is whole on a node, or in a parity group that has lost no more members than it may.
  bool is_there(CheckpointId checkpoint, const History::Shards& shards, const Nodes* among) const;
  // The shards of parity groups that lack nothing. With `may_lack`, also of groups that lack no more members than they
  // may lose.
  std::set<std::string> covered(CheckpointId checkpoint, bool may_lack, const Nodes* among = nullptr) const;
  // True if a checkpoint of the current incarnation is whole in all its places, and nobody has reported it as
  // committed.
  bool awaits_commit() const;

 private:
  using Whole = std::map<std::string, std::map<NodeId, const Slot*>>;  // by shard, then by node
  Whole whole_pieces(CheckpointId checkpoint, const Nodes* among) const;
  // reachable_from(): the nodes that a leader on this machine has heard from, if it does its work. awaited_by(): the
  // nodes that this leader must still wait for.
  Nodes reachable_from(const Machine& leader) const;
  Nodes awaited_by(const Machine& leader) const;
  std::set<core::NodeId> contradicting(const Whole& whole, const core::IncarnationRecord& incarnation_record) const;
  static bool is_same(const core::Decision& notified, const core::Decision& decided);
  const Slot& writable(const Machine& machine, const SlotRef& ref, const char* what) const;
  void committed(const Machine& machine, CheckpointId checkpoint);
  void directed(const Machine& leader, const core::Directive& directive);
  void check_passed_on(const Machine& machine, const core::Report& report);
  void check_replacements(NodeId by, const core::IncarnationRecord& old, const core::IncarnationRecord& record,
                          const core::AssignmentTable& assignment_table);
  void check_is_not_counted(const Machine& machine, const core::Node& node, const core::Report& report) const;
  std::optional<Violation> judge_loss(const Machine& leader, const core::IncarnationRecord& before,
                                      const core::IncarnationRecord& record, const std::string& what) const;
  const History::Shards& needed(CheckpointId checkpoint, const core::IncarnationRecord& before,
                                core::Rank world_size) const;
  bool may_be_a_fraction(CheckpointId checkpoint, const core::IncarnationRecord& before, core::Rank world_size) const;
  bool is_too_much(CheckpointId checkpoint, core::Rank world_size) const;
  const History::Shards& with_parity(CheckpointId checkpoint) const;
  std::optional<Violation> judge_doubt(const Machine& leader, const core::IncarnationRecord& before,
                                       const core::Decision& decision, const std::string& what) const;
  void check_decision(const core::IncarnationRecord& before, const core::IncarnationRecord& now);
  bool is_forgotten(std::uint64_t incarnation) const;
  void incarnation_opened(std::uint64_t incarnation);
  void stranding(const Machine& leader, const core::Directive& directive);
  bool is_witnessed(const std::vector<core::Member>& members, const Nodes& among) const;
  bool is_unwitnessed(const std::vector<core::Member>& members) const;

  World& world_;
  History history_;
  Tally tally_;
  CheckpointId newest_whole_;  // newest checkpoint of the current incarnation that has had all its copies
  core::LeaderRecord leader_record_;
  bool leader_record_spoiled_ = false;               // the store has lost the leader's record or set it back
  std::map<std::uint64_t, NodeId> epoch_holders_;    // which node was elected with each epoch
  std::map<std::uint64_t, TimeMs> epochs_asked_at_;  // when its node last asked the store for it
  std::uint64_t newest_epoch_led_ = 0;               // newest epoch whose leader took charge of an incarnation
  TimeMs newest_epoch_led_since_ = 0;
  std::uint64_t newest_decided_ = 0;                            // newest incarnation that was ever opened
  bool incarnation_record_spoiled_ = false;                     // the store has lost that record or set it back
  std::optional<TimeMs> incarnation_record_spoiled_at_;         // when it last did so
  core::AssignmentTable assignments_before_;                    // of the incarnation before the recorded one
  TimeMs newest_incarnation_read_at_ = 0;                       // last time that an agent may have read its record
  std::uint64_t newest_decided_read_ = 0;                       // newest incarnation whose decision an agent has read
  CheckpointId newest_forgotten_;                               // newest commit that nobody remembers
  std::set<std::pair<std::uint64_t, std::uint64_t>> stranded_;  // (epoch, incarnation) that were reported as stranded
  core::NodeStatus stale_before_;                               // the node before it handles a stale directive
  std::map<std::pair<NodeId, NodeId>, std::uint64_t> received_epochs_;  // (by, from) -> newest epoch of a report
  std::map<std::pair<std::uint64_t, std::string>, std::uint64_t> restored_digests_;  // (incarnation, shard)
  std::map<std::pair<std::uint64_t, std::uint64_t>, core::Report> reports_;          // (agent, sequence), as sent
};

}  // namespace ckpt::sim
