// Health is the verdict on a job: whether it is protected, and if not, why, since when, and what is at risk.
//
// The leader judges the whole job and sends its verdict with every directive. Each node also judges by itself, in case
// it cannot hear the leader. The health is the worse of these two verdicts. Pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "core/types.hpp"

namespace ckpt::core {

// How well the job is protected. A higher value is worse.
enum class Standing : std::uint8_t { is_protected = 0, degraded = 1, unprotected = 2 };

// Why a job is degraded or not protected. The numbers go over the network, so they never change.
enum class Cause : std::uint8_t {
  none = 0,
  beginning = 1,        // this incarnation has committed nothing yet
  no_trainers = 2,      // no rank has a trainer
  waits_for_ranks = 3,  // a restore waits for ranks that have not called restore()
  waits_for_nodes = 4,  // a restore waits for nodes that may hold newer state
  waits_for_storage = 5,
  waits_for_state = 6,     // the decided checkpoint is on its way, or can no longer be restored
  state_lost = 7,          // the restore has Verdict::lost or Verdict::mismatch
  no_leader = 8,           // the job has no leader, or this node does not hear it
  node_silent = 9,         // a member does not answer
  wrong_token = 10,        // a node has another token
  rank_gone = 11,          // a rank has no trainer any more
  rank_restoring = 12,     // a rank has not come back from restore()
  rank_stopped = 13,       // a trainer is stopped (SIGSTOP)
  rank_fails = 14,         // a trainer's snapshots fail
  rank_behind = 15,        // a trainer makes no progress while others do
  no_snapshots = 16,       // no rank calls snapshot()
  copies_do_not_fit = 17,  // a node has no memory for a piece of the next commit
  copies_missing = 18,     // a node has not got a piece of the next commit
  replacement = 19,        // a standby node has the place of a lost member
  ranks_differ = 20,       // ranks that share a shard captured different bytes of it
  too_slow = 21,           // commits come slower than the job's pace allows
  fewer_copies = 22,
  fewer_parity = 23,
  storage_fails = 24,
  coordination_fails = 25,
  other_protection = 26,  // an agent has another option `protection`
  stalled = 27,           // none of the above explains it
  agent_silent = 28,      // set by the library: the node's agent does not answer
  agent_gone = 29,        // set by the library: the node has no agent
  superseded = 30,        // set by the library: this trainer belongs to an earlier incarnation
  other_options = 31,     // a rank has another option `on_suspicion`, `capture` or `capture_every`
  no_replica = 32,        // with `capture=jit`: ranks of one node alone have a main shard
};
inline constexpr Cause last_cause = Cause::no_replica;

struct Health {
  Standing standing = Standing::unprotected;
  Cause cause = Cause::no_leader;
  NodeId node = no_node;    // the node that holds commits up, or is in trouble
  Rank rank = no_rank;      // the rank that holds commits up, or is in trouble
  std::uint8_t status = 0;  // with rank_fails: ckpt_status of its newest snapshot
  std::string detail;       // what that node or rank reports, "" if nothing
  CheckpointId committed;   // newest known commit, of any incarnation
  std::int64_t iterations_at_risk = 0;
  std::uint32_t copies_now = 0, copies = 0, parity_now = 0, parity = 0;
  // These times change all the time. A change of them alone is no news.
  TimeMs lasts_ms = 0;              // how long the standing has been the same
  TimeMs at_risk_ms = 0;            // since the newest commit, or since this incarnation restored one
  TimeMs allowed_ms = 0;            // the job is not protected after this long without a commit
  TimeMs pace_ms = 0;               // recent time between two snapshot() calls of a rank; 0: not known yet
  std::uint32_t capture_every = 1;  // in one of so many iterations main shards are captured
  // The slowest node in the newest commit.
  NodeId slowest_node = no_node;
  TimeMs slowest_ms = 0;
  bool slowest_is_capture = false;  // false: copying was slowest
  // True if both read the same to a person.
  bool says_the_same(const Health& other) const;
  bool operator==(const Health&) const = default;
};

// Measures how often a rank calls snapshot(). The result is the median of the newest intervals, so one long evaluation
// does not change it.
class SnapshotInterval {
 public:
  // Call this when the first rank of the job has called snapshot(iteration). `now`: when that was.
  void reached(std::int64_t iteration, TimeMs now);
  // 0: not known yet.
  TimeMs interval_ms() const;
  // Starts from the value of an earlier leader.
  void inherit(TimeMs interval_ms) { inherited_ms_ = interval_ms; }
  std::int64_t furthest() const { return furthest_; }
  void forget();  // a new incarnation begins

 private:
  static constexpr std::size_t kept = 8;
  std::array<TimeMs, kept> intervals_ms_{};
  std::size_t count_ = 0;  // how many intervals this incarnation has had
  TimeMs inherited_ms_ = 0;
  std::int64_t furthest_ = -1;
  TimeMs reached_at_ = 0;
};

// Measures the time since the newest commit, by this node's own clock. Every node has a CommitClock. A node that
// becomes leader goes on with its own.
class CommitClock {
 public:
  // `incarnation`: the decided incarnation, 0 while none is decided. `commit`: the newest known commit. Measures from
  // `now` on if the incarnation or the commit is new. In the first call with an incarnation, the commit does not count
  // as one of the incarnation: it may be old.
  void observe(std::uint64_t incarnation, CheckpointId commit, TimeMs now);
  // The same for a commit that may have been made some time ago: the measured time goes on.
  void observe_late(std::uint64_t incarnation, CheckpointId commit);
  // Time since the newest commit, or since the incarnation restored one.
  TimeMs quiet_ms(TimeMs now) const { return since_ ? now - *since_ : 0; }
  TimeMs last_gap_ms() const { return last_gap_ms_; }  // time between the newest commit and the one before; 0: none
  std::uint64_t incarnation() const { return incarnation_; }
  bool has_commit() const { return has_commit_; }  // whether this incarnation has committed anything

 private:
  bool begin(std::uint64_t incarnation, CheckpointId commit);
  bool note(CheckpointId commit);

  std::uint64_t incarnation_ = 0;
  CheckpointId newest_;
  bool has_commit_ = false;
  std::optional<TimeMs> since_;
  TimeMs last_gap_ms_ = 0;
};

// What a node already knows about the job's health when it becomes leader.
struct InheritedHealth {
  CommitClock clock;
  Health health;  // newest verdict
};

// How long a job may go without a commit: a few iterations at its own pace, and at least as long as the option says.
TimeMs allowed_ms(TimeMs unprotected_after_ms, TimeMs pace_ms);

using NameOf = std::function<std::string(NodeId)>;
// state_name() returns the words with which each verdict for people begins. cause_name() returns one word for programs.
const char* state_name(Standing standing);
const char* cause_name(Cause cause);
// Returns why the job has this verdict, in up to two short sentences. "" if there is nothing to say.
std::string explain(const Health& health, const NameOf& name_of);
// Returns what to do about it. "" if there is nothing to do.
std::string advice(const Health& health, const NameOf& name_of);

}  // namespace ckpt::core
