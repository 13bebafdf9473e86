// The verdict on a job: is it protected, and if not, why, since when, and what is at risk.
//
// Pure. The leader judges for the whole job (leader_health.cpp) and tells everyone with its directives. Every node
// judges by itself what the leader may be unable to tell (node_health.cpp), and the worse verdict counts.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "protocol/types.hpp"

namespace ckpt::protocol {

// In rising order of trouble.
enum class Standing : std::uint8_t { is_protected = 0, degraded = 1, unprotected = 2 };

// Why a job is not simply protected. The numbers are on the wire.
enum class Cause : std::uint8_t {
  none = 0,
  beginning = 1,        // this incarnation has committed nothing yet
  no_trainers = 2,      // no rank has a trainer
  waits_for_ranks = 3,  // a restore waits for ranks that have not called restore()
  waits_for_nodes = 4,  // a restore waits for nodes that may hold newer state
  waits_for_storage = 5,
  waits_for_state = 6,     // the decided checkpoint is on its way, or stranded
  state_lost = 7,          // the verdict of the restore was lost or mismatch
  no_leader = 8,           // the job has no leader, or its leader is not heard
  node_silent = 9,         // a member does not answer
  wrong_token = 10,        // a node has another token
  rank_gone = 11,          // a rank has no trainer any more
  rank_restoring = 12,     // a rank has not come back from restore()
  rank_stopped = 13,       // a trainer is stopped (SIGSTOP)
  rank_fails = 14,         // a trainer's snapshots fail
  rank_behind = 15,        // a trainer makes no progress while others do
  no_snapshots = 16,       // no rank calls snapshot()
  copies_do_not_fit = 17,  // a node has no memory for what it shall hold
  copies_missing = 18,     // a node does not have what it shall hold
  replacement = 19,        // a standby node has the place of a lost one
  ranks_differ = 20,       // the alarm
  too_slow = 21,           // commits come slower than the job's pace allows
  fewer_copies = 22,
  fewer_parity = 23,
  storage_fails = 24,
  coordination_fails = 25,
  other_protection = 26,  // an agent has another option `protection`
  stalled = 27,           // nothing of the above explains it
  agent_silent = 28,      // told by the library: the node's agent does not answer
  agent_gone = 29,        // likewise: there is none
  superseded = 30,        // likewise: this trainer belongs to an earlier incarnation
};
inline constexpr Cause last_cause = Cause::superseded;

struct Health {
  Standing standing = Standing::unprotected;
  Cause cause = Cause::no_leader;
  NodeId node = no_node;    // that holds commits up, or is in trouble
  Rank rank = no_rank;      // likewise
  std::uint8_t status = 0;  // with rank_fails: ckpt_status of its newest snapshot
  std::string detail;       // what whoever is in trouble said, "" if nothing
  CheckpointId committed;   // newest commit that is known, of whatever incarnation
  std::int64_t iterations_at_risk = 0;
  std::uint32_t copies_now = 0, copies = 0, parity_now = 0, parity = 0;
  // These change with every look. They are no news.
  TimeMs lasts_ms = 0;    // so long the standing has been the same
  TimeMs at_risk_ms = 0;  // since the newest commit, or since this incarnation went on from one
  TimeMs allowed_ms = 0;  // after which a job without a commit is not protected
  TimeMs pace_ms = 0;     // between two snapshot() calls of a rank, lately; 0: not known yet
  // What took longest in the newest commit.
  NodeId slowest_node = no_node;
  TimeMs slowest_ms = 0;
  bool slowest_is_capture = false;  // else it was the copies
  // Whether both say the same to people.
  bool says_the_same(const Health& other) const;
  bool operator==(const Health&) const = default;
};

// The time between snapshot() calls, from the newest ones: the median, so that one long evaluation changes nothing.
class SnapshotInterval {
 public:
  // The furthest rank has come to `iteration`.
  void reached(std::int64_t iteration, TimeMs now);
  // 0: not known yet.
  TimeMs interval_ms() const;
  // What was known before, as of another leader.
  void inherit(TimeMs interval_ms) { inherited_ms_ = interval_ms; }
  std::int64_t furthest() const { return furthest_; }
  void forget();  // a new incarnation begins

 private:
  static constexpr std::size_t kept = 8;
  std::array<TimeMs, kept> intervals_ms_{};
  std::size_t count_ = 0;  // ever
  TimeMs inherited_ms_ = 0;
  std::int64_t furthest_ = -1;
  TimeMs reached_at_ = 0;
};

// When commits were heard of, by the node's own clock. Every node keeps one; a leader that is elected starts from it.
class CommitClock {
 public:
  // `incarnation`: that was decided, 0 while none is. `commit`: newest one that is known. What is known when the
  // incarnation is first observed is no commit of now: an agent that starts again, or leads, knows of it and not how
  // old it is.
  void observe(std::uint64_t incarnation, CheckpointId commit, TimeMs now);
  // Likewise, where it is not known how old the news is: it is no commit of now either.
  void observe_late(std::uint64_t incarnation, CheckpointId commit);
  // Since the newest commit, or since the incarnation went on from one.
  TimeMs quiet_ms(TimeMs now) const { return since_ ? now - *since_ : 0; }
  TimeMs last_gap_ms() const { return last_gap_ms_; }  // between the newest commit and the one before; 0: none
  std::uint64_t incarnation() const { return incarnation_; }
  bool has_commit() const { return has_commit_; }  // of this incarnation

 private:
  bool begin(std::uint64_t incarnation, CheckpointId commit);
  bool note(CheckpointId commit);

  std::uint64_t incarnation_ = 0;
  CheckpointId newest_;
  bool has_commit_ = false;
  std::optional<TimeMs> since_;
  TimeMs last_gap_ms_ = 0;
};

// What a node knows when it is elected.
struct InheritedHealth {
  CommitClock clock;
  Health health;  // newest verdict
};

// So long a job may go without a commit: a few iterations at its own pace, and never less than the option says.
TimeMs allowed_ms(TimeMs unprotected_after_ms, TimeMs pace_ms);

using NameOf = std::function<std::string(NodeId)>;
// For people. `state_name` begins each line that tells the verdict; `cause_name` is for programs.
const char* state_name(Standing standing);
const char* cause_name(Cause cause);
// Why: up to two short sentences, "" where there is nothing to say.
std::string explain(const Health& health, const NameOf& name_of);
// What to do, "" where there is nothing to do.
std::string advice(const Health& health, const NameOf& name_of);

}  // namespace ckpt::protocol
