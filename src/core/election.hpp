// Election decides for one node which node is the leader. The leader holds a lease: a record in the coordination store,
// which it renews. A node that sees the record unchanged for lease_ms or somewhat longer takes it over, with the next
// epoch. Each node measures that time by its own clock, so clocks need not agree. Two nodes may believe for a while
// that they lead. All nodes then obey the one with the higher epoch. leader/leader.hpp says why the other one does no
// harm. Not thread-safe.
#pragma once

#include <optional>
#include <string>

#include "core/events.hpp"
#include "core/plausible.hpp"

namespace ckpt::core {

// Returns sentences for people: why this node ignores a record of the coordination store, and what to do. `record`: the
// record's key. `number`: which of its numbers cannot be true, "epoch" or "incarnation". `claimed`: that number in the
// record. `known`: the newest such number that this node knows.
std::string damaged_record(const char* record, const char* number, std::uint64_t claimed, std::uint64_t known);

// The leader before this node's own term, whose lease ran out.
struct Predecessor {
  NodeId node = no_node;    // no_node: it was this node, or this node never had a directive from it
  TimeMs silent_since = 0;  // when it last gave a sign of life, in the store or in a message
};

class Election {
 public:
  // `highest_epoch`: the newest epoch that this node ever obeyed. Its own terms get higher epochs.
  Election(const Config& config, std::uint64_t highest_epoch) : config_(config), highest_epoch_(highest_epoch) {}

  void on_read(const LeaderRecordRead& read, TimeMs now);
  // Node `leader` has sent a directive with this epoch. So it is alive, even if the epoch is old. If the epoch is newer
  // than the record's, this node obeys `leader`: perhaps this node alone cannot read the store.
  void on_directive_of(NodeId leader, std::uint64_t epoch, TimeMs now);
  // Call this with the epoch of each message, and of the incarnation record. If the epoch is newer than this node's own
  // term, this node no longer leads. Returns false if the epoch is too high to be true. The caller must then ignore
  // that message or record.
  bool on_higher_epoch(std::uint64_t epoch);
  // This node has just had a pause in which it did nothing. Meanwhile another node may have become leader.
  void on_pause(TimeMs now);
  // `obeyed`: true if another node obeys this node as leader. A leader that no other node obeys lets its lease run out.
  void on_tick(TimeMs now, bool obeyed, Effects& effects);

  bool is_leader() const { return my_epoch_ != 0; }
  // False from the end of a pause until the store confirms that this node still leads. If the store does not answer,
  // false for node_timeout_ms at most.
  bool knows_its_term(TimeMs now) const { return !unproven_since_ || now - *unproven_since_ > config_.node_timeout_ms; }
  const std::string& trouble() const { return trouble_; }  // why this node ignores the record; "" if it does not
  std::uint64_t epoch() const { return is_leader() ? my_epoch_ : record_.epoch; }  // of the leader that this node knows
  std::uint64_t highest_epoch() const { return highest_epoch_; }  // the newest epoch that this node has seen
  NodeId leader() const;                                          // no_node: this node knows none
  const Predecessor& predecessor() const { return predecessor_; }

 private:
  void swap(const LeaderRecord& record, TimeMs now, Effects& effects);
  bool renewal_is_due(TimeMs now) const;
  bool gives_way() const;
  bool lease_expired(TimeMs now) const;
  Predecessor silent_leader() const;

  const Config config_;
  std::uint64_t highest_epoch_;
  std::optional<std::uint64_t> revision_;  // of the record; none before the first read
  std::optional<TimeMs> older_since_;      // since when every read has returned an older record than record_
  LeaderRecord record_;
  TimeMs unchanged_since_ = 0;             // since when every read has returned record_
  std::optional<TimeMs> leader_heard_at_;  // when the newest directive of the record's node came
  // A node that says in its directives that it leads with a newer epoch than the record's.
  struct Caller {
    NodeId node = no_node;
    std::uint64_t epoch = 0;
    TimeMs received_at = 0;  // when its newest directive came
  };
  Caller caller_;
  std::uint64_t my_epoch_ = 0;         // 0: this node is not the leader
  std::uint64_t attempted_epoch_ = 0;  // epoch of the last takeover that this run of the agent tried
  Predecessor predecessor_;            // the leader before that takeover
  TimeMs last_swap_ = 0;
  std::uint64_t last_heartbeat_ = 0;      // the heartbeat that the last swap wrote
  std::optional<TimeMs> unproven_since_;  // end of a pause, if the store has not confirmed this node's term since
  std::uint64_t proving_heartbeat_ = 0;   // a record with this heartbeat must have been written after that pause
  std::string trouble_;
};

}  // namespace ckpt::core
