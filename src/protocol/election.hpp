// Who is leader: a lease on one store record, judged without comparing clocks. The leader renews its record; whoever
// sees the record unchanged for lease_ms, by its own clock, takes it over with the next epoch. Two leaders may believe
// in themselves for a while; epochs make the older one harmless (see leader.hpp).
#pragma once

#include <optional>
#include <string>

#include "protocol/events.hpp"
#include "protocol/plausible.hpp"

namespace ckpt::protocol {

// For people: why a record is not believed.
std::string damaged_record(const char* record, const char* number, std::uint64_t claimed, std::uint64_t known);

// Whose lease ran out, and since when neither the store nor a message told of it: the first of all nodes to be known
// as silent. None where this node was never told anything by it, and so cannot tell.
struct Predecessor {
  NodeId node = no_node;
  TimeMs silent_since = 0;
};

class Election {
 public:
  // `highest_epoch`: newest epoch this node ever obeyed; its own are newer.
  Election(const Config& config, std::uint64_t highest_epoch) : config_(config), highest_epoch_(highest_epoch) {}

  void on_read(const LeaderRecordRead& read, TimeMs now);
  // A directive came from that node. In whatever term: it lives. A newer term than that of the record counts: this node
  // may be the one that cannot read the store.
  void on_directive_of(NodeId leader, std::uint64_t epoch, TimeMs now);
  // Learned from a message or another record. False: it cannot be true, and what says so is to be ignored.
  bool on_higher_epoch(std::uint64_t epoch);
  // This node did nothing for a while. Whoever it waited for may have spoken, and another may lead by now.
  void on_pause(TimeMs now);
  // `obeyed`: as root, by any other node; else the lease is left to expire.
  void on_tick(TimeMs now, bool obeyed, Effects& effects);

  bool is_leader() const { return my_epoch_ != 0; }
  // False after a pause, until the store says that the term still lasts, or says nothing while nobody contradicts.
  bool knows_its_term(TimeMs now) const { return !unproven_since_ || now - *unproven_since_ > config_.node_timeout_ms; }
  const std::string& trouble() const { return trouble_; }  // why the record is not believed, "" where it is
  std::uint64_t epoch() const { return is_leader() ? my_epoch_ : record_.epoch; }
  std::uint64_t highest_epoch() const { return highest_epoch_; }
  NodeId leader() const;
  const Predecessor& predecessor() const { return predecessor_; }  // of this node as root

 private:
  void swap(const LeaderRecord& record, TimeMs now, Effects& effects);
  bool renewal_is_due(TimeMs now) const;
  bool gives_way() const;
  bool lease_expired(TimeMs now) const;
  Predecessor silent_leader() const;

  const Config config_;
  std::uint64_t highest_epoch_;
  std::optional<std::uint64_t> revision_;  // none before the first read
  std::optional<TimeMs> older_since_;      // all reads were of an older one than that
  LeaderRecord record_;
  TimeMs unchanged_since_ = 0;
  std::optional<TimeMs> leader_heard_at_;  // when a directive of the node on record last came
  struct Caller {
    NodeId node = no_node;
    std::uint64_t epoch = 0;
    TimeMs received_at = 0;
  };
  Caller caller_;                      // leads by its own word in a newer term than that of the record
  std::uint64_t my_epoch_ = 0;         // while leader
  std::uint64_t attempted_epoch_ = 0;  // of the last takeover tried in this run of the agent
  Predecessor predecessor_;            // in that takeover
  TimeMs last_swap_ = 0;
  std::uint64_t last_heartbeat_ = 0;      // of that swap
  std::optional<TimeMs> unproven_since_;  // a pause, after which it is not known yet whether the term still lasts
  std::uint64_t proving_heartbeat_ = 0;   // in the record, it was swapped after that pause
  std::string trouble_;
};

}  // namespace ckpt::protocol
