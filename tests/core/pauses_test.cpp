// Agents that stand still for a while: nobody concludes anything from a silence in which it did not listen itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster.hpp"

namespace ckpt::core::pauses {
namespace {

enum class Stage { before_roll_call, roll_call_out, decision_pending, swap_pending, fetching };
constexpr Stage stages[] = {Stage::before_roll_call, Stage::roll_call_out, Stage::decision_pending, Stage::swap_pending,
                            Stage::fetching};
constexpr const char* stage_names[] = {"before the roll call", "roll call out", "decision pending", "swap pending",
                                       "fetching"};
constexpr TimeMs pauses_ms[] = {3000, 7000, 20'000, 60'000};
constexpr TimeMs long_lease_ms = 600'000;

// Four nodes with a rank each, and two copies. Iteration 7 is the newest commit; with storage, iteration 4 lies there.
struct PausedJob : Cluster {
  explicit PausedJob(bool has_storage, TimeMs lease_ms = 2000) : Cluster(4, 4) {
    if (has_storage) storage = Cluster::Storage{};
    storage_every = 4;
    configure = [lease_ms](Config& config) { config.lease_ms = lease_ms; };
    for (NodeId node = 0; node < 4; ++node) boot(node);
    for (int i = 0; i < 100 && !current_leader(); ++i) advance(50);
    start_incarnation(own_node);
    begin_training();
    for (std::int64_t iteration = 4; iteration <= 7; ++iteration) snapshot_all(iteration);
    advance(1000);
    leader = *current_leader();
    killed = (leader + 1) % 4;
    changes.clear();
    ready.clear();
  }

  // One node is killed, its rank starts on another, and `pause` comes at the stage. Without storage a restore reads
  // none.
  void restore(Stage stage, const std::function<void()>& pause) {
    lose(killed);
    for (Rank rank = 0; rank < 4; ++rank) hello(home_of(rank), rank);
    if (stage == Stage::before_roll_call) pause();
    for (Rank rank = 0; rank < 4; ++rank)
      if (rank != leader) ask_restore(rank);
    if (stage == Stage::roll_call_out)
      arrives = [](NodeId, const Send& send) { return !std::holds_alternative<Report>(send.message); };
    ask_restore(leader);
    swapping = stage != Stage::swap_pending;
    fetching = stage != Stage::fetching;
    if (stage == Stage::swap_pending || stage == Stage::fetching) advance(3000);
    arrives = [](NodeId, const Send&) { return true; };
    if (stage != Stage::before_roll_call) pause();
    if (!swapping) release_swaps();
    if (!fetching) release_fetches();
    advance(30'000);
  }
  NodeId home_of(Rank rank) const { return rank == killed ? (killed + 1) % 4 : rank; }

  void expect_newest_restored() const {
    EXPECT_TRUE(failed.empty()) << failed.begin()->second.text;
    EXPECT_EQ(ready.size(), 4u);
    for (const auto& [rank, answer] : ready) {
      EXPECT_EQ(answer.decision.checkpoint, CheckpointId(1, 7)) << rank;
      EXPECT_FALSE(answer.decision.behind);
    }
    for (const MemberChanged& changed : changes) {
      const bool was_silent = changed.node == killed || changed.node == stopped;
      EXPECT_TRUE(changed.change != Change::lost || was_silent) << changed.node;
    }
  }

  NodeId leader = 0;
  NodeId killed = 0;
  NodeId stopped = no_node;  // while others were not
};

void for_every_stage(const std::function<void(Stage, TimeMs)>& check) {
  for (const Stage stage : stages) {
    for (const TimeMs pause_ms : pauses_ms) {
      SCOPED_TRACE(std::string(stage_names[static_cast<std::size_t>(stage)]) + ", " + std::to_string(pause_ms) + " ms");
      check(stage, pause_ms);
    }
  }
}

TEST(Pauses, PausingAllAgentsLosesNothingAtAnyStageOfARestore) {
  for_every_stage([](Stage stage, TimeMs pause_ms) {
    PausedJob job(false);
    job.restore(stage, [&] { job.pause(pause_ms); });
    job.expect_newest_restored();
  });
}

TEST(Pauses, PausingAllAgentsDoesNotRestoreAnOlderStoredCheckpoint) {
  for_every_stage([](Stage stage, TimeMs pause_ms) {
    PausedJob job(true);
    ASSERT_EQ(job.storage->steps.rbegin()->first, CheckpointId(1, 4));
    job.restore(stage, [&] { job.pause(pause_ms); });
    job.expect_newest_restored();
  });
}

TEST(Pauses, PausingTheLeaderWithinItsLeaseLosesNothing) {
  for (const bool has_storage : {false, true}) {
    for_every_stage([&](Stage stage, TimeMs pause_ms) {
      PausedJob job(has_storage, long_lease_ms);
      job.restore(stage, [&] {
        job.stop(job.leader);
        job.advance(pause_ms);
        job.resume(job.leader);
      });
      job.expect_newest_restored();
      EXPECT_EQ(job.current_leader(), job.leader);
    });
  }
}

TEST(Pauses, PausingTheLeaderLosesNothingIfAnotherLeadsMeanwhile) {
  for_every_stage([](Stage stage, TimeMs pause_ms) {
    PausedJob job(true);
    job.stopped = job.leader;
    job.restore(stage, [&] {
      job.stop(job.leader);
      job.advance(pause_ms);
      job.resume(job.leader);
    });
    job.expect_newest_restored();
  });
}

TEST(Pauses, RepeatedPausesLoseNothing) {
  PausedJob job(true);
  job.restore(Stage::decision_pending, [&] {
    for (int i = 0; i < 20; ++i) {
      job.pause(7000);
      job.advance(100);
    }
  });
  job.expect_newest_restored();
}

TEST(Pauses, PausingAllAgentsDoesNotEndTheLeadersLease) {
  PausedJob job(false);
  for (const TimeMs pause_ms : pauses_ms) {
    job.pause(pause_ms);
    job.advance(5000);
    EXPECT_EQ(job.current_leader(), job.leader);
  }
  EXPECT_TRUE(job.changes.empty());
  job.snapshot_all(8);
  for (NodeId node = 0; node < 4; ++node) EXPECT_EQ(job.status(node).committed, CheckpointId(1, 8));
}

// What it would say may be overtaken: another leads since.
TEST(Pauses, LeaderReplacedDuringItsPauseGivesNoMoreOrders) {
  PausedJob job(false);
  const std::uint64_t epoch = job.status(job.leader).epoch;
  for (Rank rank = 0; rank < 4; ++rank)
    if (rank != job.leader) job.snapshot(rank, 8);
  job.stop(job.leader);
  job.advance(10'000);
  ASSERT_NE(job.current_leader(), std::nullopt);
  job.resume(job.leader);
  int orders = 0;
  job.on_directive = [&](const Directive& directive) { orders += directive.epoch == epoch ? 1 : 0; };
  job.feed(job.leader, Progress{job.leader, 8, -1});  // its rank has skipped what the others have
  job.advance(5000);
  EXPECT_EQ(orders, 0);
  EXPECT_NE(job.current_leader(), job.leader);
}

// A store that does not answer is no reason to stop: the nodes still obey.
TEST(Pauses, LeaderContinuesAfterAPauseWithASilentStore) {
  PausedJob job(false);
  job.answering_leader_swaps = false;
  job.stop(job.leader);
  job.advance(1500);
  job.resume(job.leader);
  job.advance(5000);
  job.snapshot_all(8);
  job.advance(1000);
  EXPECT_EQ(job.status(job.leader).committed, CheckpointId(1, 8));
}

TEST(Pauses, RepeatTheRollCall) {
  PausedJob job(false);
  std::uint64_t newest = 0;
  job.on_directive = [&](const Directive& directive) { newest = std::max(newest, directive.roll_call); };
  std::uint64_t before = 0;
  job.restore(Stage::roll_call_out, [&] {
    before = newest;
    job.pause(7000);
  });
  EXPECT_GT(before, 0u);
  EXPECT_GT(newest, before);
  job.expect_newest_restored();
}

// Whoever waits is told that what was decided is lost only after as long a wait as without the pause.
TEST(Pauses, PausesDoNotCountAsWaitingForAMissingSource) {
  PausedJob job(false, long_lease_ms);
  ASSERT_EQ(job.leader, 0u);
  job.killed = 2;
  job.stopped = 3;  // has the only copies left of what ranks 2 and 3 captured
  job.fetching = false;
  job.lose(job.killed);
  for (Rank rank = 0; rank < 4; ++rank) job.hello(rank == 2 ? 1 : rank, rank);
  for (Rank rank = 0; rank < 4; ++rank) job.ask_restore(rank);
  job.advance(3000);
  job.ready.clear();
  job.stop(job.stopped);
  job.advance(2500);
  job.pause(60'000);
  job.advance(1000);
  EXPECT_TRUE(job.failed.empty());
  job.resume(job.stopped);
  job.release_fetches();
  job.advance(10'000);
  EXPECT_TRUE(job.failed.empty());
  EXPECT_EQ(job.ready.at(2).decision.checkpoint, CheckpointId(1, 7));
}

}  // namespace
}  // namespace ckpt::core::pauses
