// Election decides which node is the leader. The leader holds a lease: a record in the coordination store that it
// renews. A node that sees the record unchanged for lease_ms takes the record over, with the next epoch. Each node
// measures that time by its own clock, so clocks need not agree. Two nodes may believe for a while that they lead. All
// nodes then obey the one with the higher epoch. leader.hpp says why the other one does no harm.
#pragma once

#include <optional>
#include <string>

#include "core/events.hpp"
#include "core/plausible.hpp"

namespace ckpt::core {

// For people: says why this node ignores a damaged record.
std::string damaged_record(const char* record, const char* number, std::uint64_t claimed, std::uint64_t known);

// The leader whose lease ran out, and the time of its last sign of life in the store or in a message. The leader is
// no_node if this node never had a directive from it.
struct Predecessor {
  NodeId node = no_node;
  TimeMs silent_since = 0;
};

class Election {
 public:
  // `highest_epoch`: the newest epoch that this node ever obeyed. Its own terms get higher ones.
  Election(const Config& config, std::uint64_t highest_epoch) : config_(config), highest_epoch_(highest_epoch) {}

  void on_read(const LeaderRecordRead& read, TimeMs now);
  // `leader` has sent a directive, so it is alive, whatever its term. If its term is newer than the record's, this node
  // follows it: perhaps only this node cannot read the store.
  void on_directive_of(NodeId leader, std::uint64_t epoch, TimeMs now);
  // Handles an epoch from a message or another record. Returns false if that epoch cannot be true; then ignore its
  // source.
  bool on_higher_epoch(std::uint64_t epoch);
  // This node did nothing for a while. Meanwhile other nodes may have sent messages, and one of them may have become
  // leader.
  void on_pause(TimeMs now);
  // `obeyed`: some other node obeys this node as leader. Without that, a leader lets its lease run out.
  void on_tick(TimeMs now, bool obeyed, Effects& effects);

  bool is_leader() const { return my_epoch_ != 0; }
  // False from the end of a pause until the store confirms this node's term. If the store does not answer, and no other
  // node claims a newer term, it is true again after node_timeout_ms.
  bool knows_its_term(TimeMs now) const { return !unproven_since_ || now - *unproven_since_ > config_.node_timeout_ms; }
  const std::string& trouble() const { return trouble_; }  // why this node ignores the record, "" if it does not
  std::uint64_t epoch() const { return is_leader() ? my_epoch_ : record_.epoch; }
  std::uint64_t highest_epoch() const { return highest_epoch_; }
  NodeId leader() const;
  const Predecessor& predecessor() const { return predecessor_; }  // the leader before this node's own term

 private:
  void swap(const LeaderRecord& record, TimeMs now, Effects& effects);
  bool renewal_is_due(TimeMs now) const;
  bool gives_way() const;
  bool lease_expired(TimeMs now) const;
  Predecessor silent_leader() const;

  const Config config_;
  std::uint64_t highest_epoch_;
  std::optional<std::uint64_t> revision_;  // none before the first read
  std::optional<TimeMs> older_since_;      // since when every read has returned an older record
  LeaderRecord record_;
  TimeMs unchanged_since_ = 0;
  std::optional<TimeMs> leader_heard_at_;  // when the newest directive of the record's node came
  struct Caller {
    NodeId node = no_node;
    std::uint64_t epoch = 0;
    TimeMs received_at = 0;
  };
  Caller caller_;                      // says in its own directive that it leads in a newer term than the record's
  std::uint64_t my_epoch_ = 0;         // 0: this node is not the leader
  std::uint64_t attempted_epoch_ = 0;  // epoch of the last takeover that this run of the agent tried
  Predecessor predecessor_;            // at that takeover
  TimeMs last_swap_ = 0;
  std::uint64_t last_heartbeat_ = 0;      // the heartbeat that this swap wrote
  std::optional<TimeMs> unproven_since_;  // end of a pause; the term is not confirmed since then
  std::uint64_t proving_heartbeat_ = 0;   // a record with this heartbeat must have been written after that pause
  std::string trouble_;
};

}  // namespace ckpt::core
