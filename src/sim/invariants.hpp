// I1-I7 (docs/simulator.md), checked as things happen: each function below is told of one fact at the moment it becomes
// true and throws Violation when that breaks an invariant. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "protocol/node.hpp"
#include "protocol/seating.hpp"
#include "sim/history.hpp"
#include "sim/memory.hpp"
#include "sim/timeline.hpp"

namespace ckpt::sim {

class Trainer;
class World;
struct Machine;

struct Violation {
  std::string invariant;  // "I1" ... "I7", or "core" when it threw
  std::string text;
};

// How much happened, so that a quiet simulator is noticed.
struct Tally {
  std::uint64_t commits = 0;                                               // versions
  std::uint64_t restores = 0;                                              // ranks
  std::uint64_t from_peer = 0;                                             // of these, with a part from a peer
  std::uint64_t decoded = 0;                                               // likewise, from parity
  std::uint64_t from_storage = 0;                                          // likewise
  std::uint64_t stood_in = 0;                                              // standby nodes
  std::uint64_t stored = 0;                                                // steps
  std::uint64_t decided_fresh = 0, decided_restore = 0, decided_lost = 0;  // lives
  std::uint64_t decided_behind = 0, decided_unknown = 0;
  std::uint64_t elections = 0;
  std::uint64_t alarms = 0;  // runs in which silent corruption was reported
  std::uint64_t quarantined = 0;
  std::uint64_t restarts = 0;
  std::uint64_t given_up = 0;
  std::uint64_t relayed = 0;       // reports
  std::uint64_t told_lost = 0;     // members
  TimeMs slowest_recovery_ms = 0;  // after the last fault
  TimeMs slowest_commit_ms = 0;    // after the one before, while all was well

  void add(const Tally& other);
};

class Invariants {
 public:
  explicit Invariants(World& world);

  // The core's dealings with memory (I5, and I4 where an old writer is in the way).
  void granting(const Machine& machine, const SlotRef& ref, std::uint64_t instance);
  void filling(const Machine& machine, const SlotRef& ref);
  void capturing(const Machine& machine, const SlotRef& ref, std::uint64_t instance);
  void serving(const Machine& machine, const SlotRef& ref, const std::string& shard, Version version);
  void dropping(const Machine& machine, const SlotRef& ref);
  void writing(const Machine& machine, const SlotRef& ref, Version version);
  void releasing(const Machine& machine, Rank rank, const std::string& shard);

  // What becomes of versions (I1-I4).
  void captured(const PieceInfo& piece) { history_.captured(piece); }
  void counted(const Machine& machine, const PieceInfo& piece);
  void sending(const Machine& machine, const protocol::Message& message);
  void persisting(const Machine& machine, const protocol::Persist& persist);
  void stored_told(const Machine& machine, Rank rank, Version version) const;
  void commit_told(const Machine& machine, Rank rank, Version version);
  void restore_offered(const Machine& machine, std::uint64_t instance, const protocol::RestoreReady& ready);
  void restore_refused(const protocol::RestoreFailed& failed) const;
  void restore_hangs(const Trainer& trainer);
  void restored(const Trainer& trainer, const protocol::RestoreReady& ready);
  void storing(const Machine& root, const protocol::CommitStep& step);
  void writing_root(const Machine& machine, const protocol::RootRecord& record);
  void root_written(NodeId by, const protocol::RootRead& now);
  // What a root is about to write, judged by what it could have known; a violation once it is written.
  std::optional<Violation> judge(const Machine& root, const protocol::LifeRecord& record) const;
  struct Asked {
    TimeMs at = 0;
    std::optional<Violation> judgement = {};  // of what was decided, by what could be known then
  };
  void life_written(NodeId by, const protocol::LifeRead& before, const protocol::LifeRead& now, const Asked& asked);
  void member_told(const Machine& root, const protocol::MemberChanged& changed);

  // Around every event that a core handles (I4).
  void before(const Machine& machine, const protocol::Node& node, const protocol::Event& event);
  void after(const Machine& machine, const protocol::Node& node, const protocol::Event& event);

  // Faults own up.
  void memory_lost(Machine& machine);
  void root_record_spoiled() { root_record_spoiled_ = true; }
  void life_record_spoiled();
  void life_told(const protocol::LifeRecord& record);  // by the store, to an agent that runs
  void bit_flipped(const Slot& slot) { history_.damaged(slot.header.version); }
  void forget_everything();

  const History& history() const { return history_; }
  const Tally& tally() const { return tally_; }
  // Copies that placement can ask for in the current life.
  std::size_t copies_wanted(std::uint64_t incarnation) const;
  // Every shard of the version is whole on at least so many nodes now.
  bool is_whole(Version version, std::size_t copies) const;
  // Below, only what these nodes have counts; null: what any has.
  using Nodes = std::set<NodeId>;
  // They have different bytes of a shard at the version; without those that took no part in the life and contradict one
  // that did.
  bool is_disputed(Version version, const protocol::LifeRecord& life, const Nodes* among) const;
  // Whether lives of such a number of nodes keep parity.
  bool wants_parity(std::uint64_t incarnation) const;
  // Every shard of the version is whole on one of them, or in a group that has lost no more members than it may.
  bool is_there(Version version, const Nodes* among) const;
  // The shards of groups that lack nothing, or with `may_lack` no more members than they may lose.
  std::set<std::string> covered(Version version, bool may_lack, const Nodes* among = nullptr) const;
  // A version of the current life that is whole in all places, and that nobody has reported yet.
  bool awaits_commit() const;

 private:
  using Whole = std::map<std::string, std::map<NodeId, const Slot*>>;  // by shard, and where
  Whole whole_pieces(Version version, const Nodes* among) const;
  // Of whom a root has heard, if it did its work; with those for whom it has yet to wait.
  Nodes heard_by(const Machine& root) const;
  Nodes awaited_by(const Machine& root) const;
  std::set<protocol::NodeId> contradicting(const Whole& whole, const protocol::LifeRecord& life) const;
  static bool is_same(const protocol::Decision& told, const protocol::Decision& decided);
  const Slot& writable(const Machine& machine, const SlotRef& ref, const char* what) const;
  void committed(const Machine& machine, Version version);
  void directed(const Machine& root, const protocol::Directive& directive);
  void check_passed_on(const Machine& machine, const protocol::Report& report);
  void check_stand_ins(NodeId by, const protocol::LifeRecord& old, const protocol::LifeRecord& record,
                       const protocol::Seating& seating);
  void check_is_not_counted(const Machine& machine, const protocol::Node& node, const protocol::Report& report) const;
  std::optional<Violation> judge_loss(const Machine& root, const protocol::Decision& decision,
                                      const std::string& what) const;
  std::optional<Violation> judge_doubt(const Machine& root, const protocol::LifeRecord& before,
                                       const protocol::Decision& decision, const std::string& what) const;
  void check_decision(const protocol::LifeRecord& before, const protocol::LifeRecord& now);
  bool is_forgotten(std::uint64_t life) const;
  void life_opened(std::uint64_t life);
  void stranding(const Machine& root, const protocol::Directive& directive);
  bool is_witnessed(const std::vector<protocol::Member>& members, const Nodes& among) const;
  bool is_unwitnessed(const std::vector<protocol::Member>& members) const;

  World& world_;
  History history_;
  Tally tally_;
  Version newest_whole_;  // of the current life, with all the copies wanted
  protocol::RootRecord root_record_;
  bool root_record_spoiled_ = false;                 // by the store
  std::map<std::uint64_t, NodeId> epoch_holders_;    // who was elected with them
  std::map<std::uint64_t, TimeMs> epochs_asked_at_;  // when their nodes last asked the store for them
  std::uint64_t newest_epoch_led_ = 0;               // whose root took charge of a life
  TimeMs newest_epoch_led_since_ = 0;
  std::uint64_t newest_life_ = 0;                               // that was ever opened
  bool life_record_spoiled_ = false;                            // by the store
  std::optional<TimeMs> life_record_spoiled_at_;                // the last time in this run
  protocol::Seating seating_before_;                            // of the life before that of the store's record
  TimeMs newest_life_told_at_ = 0;                              // last by the store, for all that is known
  std::uint64_t newest_decided_told_ = 0;                       // life whose decision some agent was told by the store
  Version newest_forgotten_;                                    // that was committed, and nobody knows of
  std::set<std::pair<std::uint64_t, std::uint64_t>> stranded_;  // (epoch, life) of which that was told
  protocol::NodeStatus stale_before_;                           // of the node that handles a stale directive
  std::map<std::pair<NodeId, NodeId>, std::uint64_t> heard_;    // (by, from) -> newest epoch of a report
  std::map<std::pair<std::uint64_t, std::string>, std::uint64_t> restored_digests_;  // (life, shard)
  std::map<std::pair<std::uint64_t, std::uint64_t>, protocol::Report> reports_;      // (agent, sequence), as sent
};

}  // namespace ckpt::sim
