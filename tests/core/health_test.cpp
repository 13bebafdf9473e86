#include "core/health.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ckptengine/ckptengine.h"
#include "cluster.hpp"
#include "lone_node.hpp"

namespace ckpt::core {
namespace {

using ::testing::HasSubstr;

std::string name_of(NodeId node) { return "n" + std::to_string(node); }

// Four ranks on as many nodes.
struct Job : Cluster {
  explicit Job(std::uint32_t nodes = 4, std::uint32_t copies = 2) : Cluster(nodes, 4, copies) { begin(); }
  void begin() {
    start_incarnation([](Rank rank) { return rank; });
    begin_training();
  }
  // Runs one iteration after the other, each for this long.
  void train(int iterations, TimeMs each_ms = 100) {
    for (int i = 0; i < iterations; ++i) {
      snapshot_all(next++);
      advance(each_ms);
    }
  }
  // Until an iteration on which only these ranks come along, and so long after it.
  void train_with(const std::set<Rank>& ranks, int iterations, TimeMs each_ms = 100) {
    for (int i = 0; i < iterations; ++i, ++next) {
      for (const Rank rank : ranks) snapshot(rank, next);
      advance(each_ms);
    }
  }
  void observe(NodeId node, const Observed& seen) {
    feed(node, seen);
    advance(100);
  }
  void expect_everywhere(Standing standing, Cause cause, const std::set<NodeId>& except = {}) {
    for (NodeId node = 0; node < 4; ++node) {
      if (except.contains(node)) continue;
      EXPECT_EQ(state_name(health(node).standing), std::string(state_name(standing))) << "node " << node;
      EXPECT_EQ(cause_name(health(node).cause), std::string(cause_name(cause))) << "node " << node;
    }
  }
  std::int64_t next = 0;
};

TEST(Health, JobThatCommitsEachIterationIsProtected) {
  Job job;
  job.expect_everywhere(Standing::degraded, Cause::beginning);
  job.train(20);
  job.expect_everywhere(Standing::is_protected, Cause::none);
  const Health health = job.health(2);
  EXPECT_EQ(health.committed, CheckpointId(1, 19));
  EXPECT_EQ(health.iterations_at_risk, 0);
  EXPECT_EQ(health.copies_now, 2u);
  EXPECT_EQ(health.allowed_ms, 5000);
}

TEST(Health, JobThatStopsCommittingIsNotProtected) {
  Job job;
  job.train(5);
  job.advance(4500);
  job.expect_everywhere(Standing::is_protected, Cause::none);
  job.advance(1000);
  job.expect_everywhere(Standing::unprotected, Cause::no_snapshots);
  const Health health = job.health(1);
  EXPECT_GT(health.at_risk_ms, health.allowed_ms);
  job.train(1);
  EXPECT_NE(job.health(3).standing, Standing::unprotected);
}

TEST(Health, AnIncarnationThatNeverCommitsIsNotProtected) {
  Job job;
  job.advance(6000);
  job.expect_everywhere(Standing::unprotected, Cause::no_snapshots);
  EXPECT_FALSE(job.health(0).committed);
}

TEST(Health, AllowsFourIterationsAtTheJobsOwnPace) {
  Job job;
  job.train(12, 3000);
  EXPECT_EQ(job.health(0).allowed_ms, 12'000);
  job.advance(8000);
  job.expect_everywhere(Standing::is_protected, Cause::none);
  job.advance(2000);
  job.expect_everywhere(Standing::unprotected, Cause::no_snapshots);
}

TEST(Health, OneLongEvaluationDoesNotChangeThePace) {
  Job job;
  job.train(10, 1000);
  job.advance(60'000);
  job.train(3, 1000);
  EXPECT_EQ(job.health(0).allowed_ms, 5000);
}

TEST(Health, NamesTheRankThatMakesNoProgress) {
  Job job;
  job.train(5);
  job.train_with({0, 1, 3}, 60);
  job.expect_everywhere(Standing::unprotected, Cause::rank_behind);
  EXPECT_EQ(job.health(0).rank, 2u);
  EXPECT_EQ(job.health(0).node, 2u);
  EXPECT_GT(job.health(0).iterations_at_risk, 50);
}

TEST(Health, NamesAStoppedTrainerImmediatelyAndIsLaterNotProtected) {
  Job job;
  job.train(5);
  job.observe(1, {.stopped = {1}});
  job.advance(300);
  job.expect_everywhere(Standing::degraded, Cause::rank_stopped);
  job.advance(6000);
  job.expect_everywhere(Standing::unprotected, Cause::rank_stopped);
  EXPECT_EQ(job.health(3).rank, 1u);
  EXPECT_THAT(explain(job.health(3), name_of), HasSubstr("rank 1 on node n1 is stopped"));
}

TEST(Health, NamesTheTrainerWhoseSnapshotsFail) {
  Job job;
  job.train(5);
  job.observe(2, {.failed = {{2, CKPT_ERR_NO_SPACE}}});
  job.train_with({0, 1, 3}, 60);
  job.expect_everywhere(Standing::unprotected, Cause::rank_fails);
  EXPECT_THAT(explain(job.health(0), name_of), HasSubstr("rank 2 on node n2 fail: its state does not fit"));
}

TEST(Health, NamesTheNodeWithoutMemoryForCopies) {
  Job job;
  job.fetching = false;
  for (int i = 0; i < 80; ++i) {
    job.train(1);
    const auto fetches = std::exchange(job.held_fetches, {});
    const auto by = std::exchange(job.held_by, {});
    for (std::size_t k = 0; k < fetches.size(); ++k) {
      const FetchResult result = by[k] == 3 ? FetchResult::no_space : FetchResult::complete;
      job.feed(by[k], FetchEnded{fetches[k].fetch, result, {}, {}});
    }
  }
  job.expect_everywhere(Standing::unprotected, Cause::copies_do_not_fit);
  EXPECT_EQ(job.health(0).node, 3u);
}

TEST(Health, NamesTheNodeThatDoesNotHaveItsCopies) {
  Job job;
  job.train(3);
  job.fetching = false;
  job.train(60);
  job.expect_everywhere(Standing::unprotected, Cause::copies_missing);
  EXPECT_NE(job.health(0).node, no_node);
}

TEST(Health, NamesTheNodeThatDoesNotAnswer) {
  Job job;
  job.train(5);
  const NodeId victim = *job.current_leader() == 3 ? 2 : 3;
  job.lose(victim);
  job.advance(3000);
  job.expect_everywhere(Standing::degraded, Cause::node_silent, {victim});
  job.advance(3000);
  job.expect_everywhere(Standing::unprotected, Cause::node_silent, {victim});
  EXPECT_EQ(job.health(0).node, victim);
}

TEST(Health, AfterTheLeaderIsLostTheNextOneNamesIt) {
  Job job;
  job.train(5);
  const NodeId leader = *job.current_leader();
  job.lose(leader);
  job.advance(20'000);
  job.expect_everywhere(Standing::unprotected, Cause::node_silent, {leader});
  const NodeId other = leader == 0 ? 1 : 0;
  EXPECT_EQ(job.health(other).node, leader);
  EXPECT_EQ(job.health(other).committed, CheckpointId(1, 4));
  EXPECT_GT(job.health(other).at_risk_ms, 19'000) << "the time before the election counts";
  NodeId late = 0;  // it has seen nothing of it
  while (late == leader || late == *job.current_leader()) ++late;
  job.restart_agent(late);
  job.advance(1000);
  EXPECT_GT(job.health(late).at_risk_ms, 19'000) << "also where the new leader alone knows of it";
}

TEST(Health, NodeWithoutALeaderJudgesByItself) {
  Job job;
  job.train(5);
  const NodeId leader = *job.current_leader(), alone = leader == 3 ? 2 : 3;
  for (NodeId node = 0; node < 4; ++node) {
    job.cut.insert({alone, node});
    job.cut.insert({node, alone});
  }
  job.cut.erase({alone, alone});
  job.advance(3000);
  EXPECT_EQ(job.health(alone).standing, Standing::degraded);
  EXPECT_EQ(job.health(alone).cause, Cause::no_leader);
  job.advance(4000);
  EXPECT_EQ(job.health(alone).standing, Standing::unprotected);
  EXPECT_EQ(job.health(alone).cause, Cause::no_leader);
}

TEST(Health, PausedNodeDoesNotRepeatEarlierNews) {
  Job job;
  job.train(5);
  const NodeId leader = *job.current_leader(), paused = leader == 3 ? 2 : 3;
  job.stop(paused);
  job.advance(10'000);
  job.resume(paused);
  EXPECT_EQ(job.health(paused).standing, Standing::unprotected);
}

TEST(Health, ANewLeaderKnowsThePaceOfTheJob) {
  Job job;
  job.train(10, 3000);
  job.change_leader();
  job.advance(2000);
  for (NodeId node = 0; node < 4; ++node) {
    EXPECT_EQ(job.health(node).allowed_ms, 12'000);
    EXPECT_NE(job.health(node).standing, Standing::unprotected);
  }
}

// A directive lay there that was sent right after its pause began.
TEST(Health, PausedNodeDoesNotTrustOldNews) {
  for (const TimeMs pause_ms : {6000, 60'000}) {
    LoneNode node{Config{}};
    node.follow(lone_leader, 5);
    Directive directive;
    directive.leader = lone_leader;
    directive.epoch = 5;
    directive.incarnation = 1;
    directive.decision.verdict = Verdict::fresh;
    directive.health.standing = Standing::is_protected;
    directive.health.cause = Cause::none;
    const auto receive = [&](std::uint64_t answered, std::int64_t committed) {
      ++directive.sequence;
      directive.acknowledged_agent = 1;
      directive.acknowledged_report = answered;
      directive.committed = CheckpointId(1, committed);
      node.receive(lone_leader, directive);
    };
    node.handle(Tick{});
    const auto newest_said = [&] { return node.newest_to<Report>(lone_leader).sequence; };
    receive(newest_said(), 3);
    receive(newest_said(), 4);
    ASSERT_EQ(node.health().standing, Standing::is_protected);
    const std::uint64_t said_before = newest_said();
    node.now += pause_ms;
    receive(said_before, 5);
    EXPECT_EQ(node.health().standing, Standing::unprotected) << pause_ms;
    EXPECT_GE(node.health().at_risk_ms, pause_ms);
    // Nor is it new when it is told again.
    ASSERT_GT(newest_said(), said_before);
    receive(newest_said(), 5);
    EXPECT_EQ(node.health().standing, Standing::unprotected) << pause_ms;
    receive(newest_said(), 6);
    EXPECT_EQ(node.health().standing, Standing::is_protected) << pause_ms;
  }
}

// How old it is, nobody can tell who was not there.
TEST(CommitClock, IgnoresCommitsThatWereKnownBefore) {
  CommitClock clock;
  clock.observe(0, CheckpointId(3, 7), 1000);
  clock.observe(3, CheckpointId(3, 7), 2000);
  EXPECT_FALSE(clock.has_commit());
  clock.observe(3, CheckpointId(3, 8), 4000);
  EXPECT_TRUE(clock.has_commit());
  EXPECT_EQ(clock.quiet_ms(4500), 500);
}

TEST(Health, OldCommitDoesNotMakeANewLeadersJobProtected) {
  LoneLeader leader(4, placement::Protection::of_copies(1));
  for (NodeId node = 0; node < 4; ++node) {
    Report report = leader.report_of(node, 8);
    report.protection = placement::Protection::of_copies(1);
    report.highest_commit = CheckpointId(1, 8);
    for (const auto& shard : {main_shard(node), private_shard(node)})
      report.pieces.push_back(piece_of(shard, CheckpointId(1, 8), 4));
    leader.say(report);
  }
  const Health health = leader.newest_to<Directive>(0).health;
  EXPECT_EQ(health.committed, CheckpointId(1, 8));
  EXPECT_EQ(health.standing, Standing::degraded);
  EXPECT_EQ(health.cause, Cause::beginning);
}

TEST(Health, FewerCopiesThanAskedForAreDegraded) {
  Cluster job(1, 1);
  job.start_incarnation(own_node);
  job.begin_training();
  for (std::int64_t k = 0; k < 5; ++k) {
    job.snapshot_all(k);
    job.advance(100);
  }
  EXPECT_EQ(job.health(0).standing, Standing::degraded);
  EXPECT_EQ(job.health(0).cause, Cause::fewer_copies);
  EXPECT_EQ(explain(job.health(0), name_of), "the newest commit has 1 of 2 copies");
}

TEST(Health, NamesAnAgentWithAnotherProtection) {
  Cluster cluster(4, 4);
  cluster.protection = placement::Protection::of_copies(3);
  cluster.boot(2);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  for (std::int64_t k = 0; k < 5; ++k) {
    cluster.snapshot_all(k);
    cluster.advance(100);
  }
  ASSERT_NE(*cluster.current_leader(), 2u);
  for (NodeId node = 0; node < 4; ++node) {
    EXPECT_EQ(cluster.health(node).standing, Standing::degraded);
    EXPECT_EQ(cluster.health(node).cause, Cause::other_protection);
    EXPECT_EQ(cluster.health(node).node, 2u);
    EXPECT_THAT(explain(cluster.health(node), name_of), HasSubstr("copies(3), the job has copies(2)"));
  }
}

TEST(Health, NamesARankWithAnotherReactionToSuspicions) {
  Cluster cluster(0, 4);
  cluster.configure = [](Config& config) { config.halts = true; };
  cluster.halting = {0, 1, 3};
  for (NodeId node = 0; node < 4; ++node) cluster.boot(node);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  for (std::int64_t k = 0; k < 5; ++k) {
    cluster.snapshot_all(k);
    cluster.advance(100);
  }
  const Health health = cluster.health(0);
  EXPECT_EQ(health.standing, Standing::degraded);
  EXPECT_EQ(health.cause, Cause::other_options);
  EXPECT_EQ(health.rank, 2u);
  EXPECT_THAT(explain(health, name_of),
              HasSubstr("on_suspicion=report capture=every capture_every=1, rank 0 has on_suspicion=halt"));
}

TEST(Health, NamesAnAgentWithAnotherCaptureInterval) {
  Cluster cluster(4, 4);
  for (Rank rank = 0; rank < 4; ++rank) cluster.captures_every[rank] = 10;
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  for (std::int64_t k = 0; k < 5; ++k) {
    cluster.snapshot_all(k);
    cluster.advance(100);
  }
  EXPECT_EQ(cluster.health(0).cause, Cause::other_options);
  EXPECT_THAT(explain(cluster.health(0), name_of),
              HasSubstr("capture_every=10, the leading agent has on_suspicion=report capture=every capture_every=1"));
}

TEST(Health, NamesAMainShardWithoutAReplicaIfRanksRelyOnReplicas) {
  Cluster cluster(0, 4);
  cluster.capture = CaptureMode::jit;
  cluster.configure = [](Config& config) { config.capture = CaptureMode::jit; };
  cluster.main_of = [](Rank rank) { return rank < 2 ? std::string("shared") : main_shard(rank); };
  for (NodeId node = 0; node < 4; ++node) cluster.boot(node);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  for (std::int64_t k = 0; k < 5; ++k) {
    cluster.snapshot_all(k);
    cluster.advance(100);
  }
  const Health health = cluster.health(0);
  EXPECT_EQ(health.standing, Standing::degraded);
  EXPECT_EQ(health.cause, Cause::no_replica);
  EXPECT_THAT(health.detail, HasSubstr("main shard " + main_shard(2)));
}

TEST(Health, AllowsForRareCapturesOfAReplicatedJob) {
  for (const bool is_replicated : {false, true}) {
    Cluster cluster(0, 4);
    cluster.capture = CaptureMode::automatic;
    for (Rank rank = 0; rank < 4; ++rank) cluster.captures_every[rank] = 10;
    cluster.configure = [](Config& config) {
      config.capture = CaptureMode::automatic;
      config.capture_every = 10;
    };
    if (is_replicated) cluster.main_of = [](Rank) { return std::string("shared"); };
    for (NodeId node = 0; node < 4; ++node) cluster.boot(node);
    cluster.start_incarnation(own_node);
    cluster.begin_training();
    for (std::int64_t k = 0; k < 5; ++k) {
      cluster.snapshot_all(k);
      cluster.advance(100);
    }
    EXPECT_EQ(cluster.health(1).capture_every, is_replicated ? 10u : 1u);
    EXPECT_EQ(cluster.health(1).cause, Cause::none);
  }
}

TEST(Health, NamesANodeThatCannotUseTheCoordinationStore) {
  Job job;
  job.train(5);
  job.observe(2, {.coordination_fails = true});
  job.train(5);
  job.expect_everywhere(Standing::degraded, Cause::coordination_fails);
  EXPECT_EQ(job.health(0).node, 2u);
}

TEST(Health, ReportsAWrongTokenAsTheCause) {
  Job job;
  job.train(5);
  const NodeId leader = *job.current_leader(), victim = leader == 3 ? 2 : 3;
  job.lose(victim);
  job.feed(leader, Observed{.distrusted = {victim}});
  job.advance(7000);
  job.expect_everywhere(Standing::unprotected, Cause::wrong_token, {victim});
  EXPECT_THAT(explain(job.health(leader), name_of),
              HasSubstr("node n" + std::to_string(victim) + " has another token"));
}

TEST(Health, NamesTheRankForWhichARestoreWaits) {
  Cluster job(4, 4);
  for (Rank rank = 0; rank < 4; ++rank) job.hello(rank, rank);
  for (Rank rank = 0; rank < 3; ++rank) job.ask_restore(rank);
  job.advance(6000);
  for (NodeId node = 0; node < 4; ++node) {
    EXPECT_EQ(job.health(node).standing, Standing::unprotected);
    EXPECT_EQ(job.health(node).cause, Cause::waits_for_ranks);
    EXPECT_EQ(job.health(node).rank, 3u);
  }
}

TEST(Health, NamesATrainerThatEnded) {
  Job job;
  job.train(5);
  job.exit_trainer(2);
  job.advance(6000);
  job.expect_everywhere(Standing::unprotected, Cause::rank_gone);
  EXPECT_EQ(job.health(0).rank, 2u);
}

TEST(Health, ReportsCommitsThatAreSlowerThanAllowed) {
  Job job;
  job.train(10);
  job.train_with({0, 1, 2}, 60);  // one rank sleeps for six seconds
  const CheckpointId before = job.health(0).committed;
  for (int i = 0; i < 10 && job.health(0).committed == before; ++i) job.train(1);
  job.expect_everywhere(Standing::degraded, Cause::too_slow);
  job.train(5);
  job.expect_everywhere(Standing::is_protected, Cause::none);
}

TEST(Health, ReportsTheSlowestStepOfTheNewestCommit) {
  Job job;
  job.fetching = false;
  job.snapshot_all(0);
  job.advance(700);
  job.release_fetches();
  job.advance(500);
  const Health health = job.health(0);
  EXPECT_EQ(health.committed, CheckpointId(1, 0));
  EXPECT_FALSE(health.slowest_is_capture);
  EXPECT_GE(health.slowest_ms, 600);
  EXPECT_NE(health.slowest_node, no_node);
}

// ---- What else is told, each with its cause ----

// No commit is due yet: what is told is told at once.
void commits_are_due_in_an_hour(Config& config) { config.unprotected_after_ms = 3'600'000; }

TEST(Health, ReportsAJobWithoutTrainers) {
  Job job;
  job.train(5);
  for (Rank rank = 0; rank < 4; ++rank) job.exit_trainer(rank);
  job.advance(6000);
  job.expect_everywhere(Standing::unprotected, Cause::no_trainers);
}

// The member is back, and the store is slow to say so.
TEST(Health, NamesAReplacementWithTheNodeItReplaces) {
  Cluster job(4, 4);
  job.standbys = {4};
  job.boot(4);
  job.start_incarnation(own_node);
  job.begin_training();
  job.snapshot_all(1);
  const NodeId away = *job.current_leader() == 3 ? 2 : 3;
  for (NodeId node = 0; node < 5; ++node) {
    job.cut.insert({node, away});
    job.cut.insert({away, node});
  }
  job.advance(8000);
  ASSERT_FALSE(job.incarnation_record().replacements.empty());
  job.swapping = false;
  job.cut.clear();
  job.advance(1000);
  EXPECT_EQ(job.health(0).cause, Cause::replacement);
  EXPECT_EQ(job.health(0).node, away);
}

// Whatever the time: nothing can be committed before people have seen to it.
TEST(Health, LostStateIsImmediatelyNotProtected) {
  Cluster job(2, 2, 1);
  job.configure = commits_are_due_in_an_hour;
  for (NodeId node = 0; node < 2; ++node) job.boot(node);
  job.advance(3000);
  job.start_incarnation(own_node);
  job.begin_training();
  job.snapshot_all(1);
  job.advance(500);
  job.lose(1 - *job.current_leader());
  job.advance(5000);
  job.boot(job.current_leader() == NodeId{0} ? 1 : 0);
  job.start_incarnation(own_node);
  job.advance(20'000);
  ASSERT_EQ(job.failed.size(), 2u);
  for (NodeId node = 0; node < 2; ++node) {
    EXPECT_EQ(job.health(node).standing, Standing::unprotected);
    EXPECT_EQ(job.health(node).cause, Cause::state_lost);
  }
}

TEST(Health, ReportsReplicasThatDiffer) {
  Cluster job(2, 2);
  job.main_of = [](Rank) { return std::string("model"); };
  job.strategy = placement::Strategy::group;
  job.configure = commits_are_due_in_an_hour;
  for (NodeId node = 0; node < 2; ++node) job.boot(node);
  job.advance(3000);
  job.start_incarnation(own_node);
  job.begin_training();
  job.snapshot_all(1);
  for (const Rank rank : {0u, 1u}) {
    Captured captured{rank, {}};
    for (const SlotRef& slot : job.granted().at(rank)) captured.pieces.push_back(piece_of(slot.shard, {1, 2}, 2));
    if (rank == 1) captured.pieces.front().root_digest ^= 1;
    job.feed(rank, captured);
    job.feed(rank, Progress{rank, 2, -1});
  }
  job.advance(1000);
  EXPECT_EQ(job.health(0).standing, Standing::degraded);
  EXPECT_EQ(job.health(0).cause, Cause::ranks_differ);
  EXPECT_THAT(explain(job.health(1), name_of), HasSubstr("silent data corruption"));
}

TEST(Health, NamesARankThatDoesNotReturnFromRestore) {
  Job job;
  job.train(5);
  job.fetching = false;
  job.start_incarnation([](Rank rank) { return (rank + 2) % 4; });  // where no copy of its state is
  job.advance(3000);
  job.expect_everywhere(Standing::degraded, Cause::rank_restoring);
  EXPECT_NE(job.health(0).rank, no_rank);
}

TEST(Health, ReportsFailingStorage) {
  Cluster job(2, 2);
  job.storage = Cluster::Storage{};
  job.storage_every = 2;
  for (NodeId node = 0; node < 2; ++node) job.boot(node);
  job.advance(3000);
  job.start_incarnation(own_node);
  job.begin_training();
  job.snapshot_all(1);
  job.storage->trouble = "no room is left";
  for (std::int64_t iteration = 2; iteration < 12; ++iteration) {
    job.snapshot_all(iteration);
    job.advance(100);
  }
  EXPECT_EQ(job.health(1).standing, Standing::degraded);
  EXPECT_EQ(job.health(1).cause, Cause::storage_fails);
  EXPECT_THAT(explain(job.health(1), name_of), HasSubstr("no room is left"));
}

TEST(Health, LessParityThanAskedForIsDegraded) {
  Cluster job(4, 4);
  job.protection = placement::protection_named("xor(4)");
  for (NodeId node = 0; node < 4; ++node) job.boot(node);
  job.advance(3000);
  job.start_incarnation(own_node);
  job.begin_training();
  job.snapshot_all(1);
  job.advance(500);
  ASSERT_EQ(job.health(0).standing, Standing::is_protected);
  job.fetching = false;
  std::vector<std::pair<NodeId, std::string>> parity;
  for (NodeId node = 0; node < 4; ++node)
    for (const PieceInfo& piece : job.status(node).pieces)
      if (piece.is_parity()) parity.emplace_back(node, piece.shard);
  ASSERT_FALSE(parity.empty());
  job.rot(parity[0].first, parity[0].second, CheckpointId(1, 1));
  job.advance(500);
  EXPECT_EQ(job.health(0).standing, Standing::degraded);
  EXPECT_EQ(job.health(0).cause, Cause::fewer_parity);
}

TEST(Health, NodeReportsATroubledStoreBeforeItsLeaderDoes) {
  Job job;
  job.train(5);
  job.feed(2, Observed{.coordination_fails = true});
  EXPECT_EQ(job.health(2).standing, Standing::degraded);
  EXPECT_EQ(job.health(2).cause, Cause::coordination_fails);
  EXPECT_EQ(job.health(2).node, 2u);
}

// Each finds itself refused by most others.
TEST(Health, LeaderAndNodesWithoutALeaderReportTheirOwnWrongToken) {
  Job job;
  job.train(5);
  const NodeId leader = *job.current_leader(), alone = leader == 3 ? 2 : 3;
  for (NodeId node = 0; node < 4; ++node) {
    job.cut.insert({alone, node});
    job.cut.insert({node, alone});
  }
  job.cut.erase({alone, alone});
  job.feed(alone, Observed{.distrusted = {alone}});
  job.feed(leader, Observed{.distrusted = {leader}});
  job.advance(4000);
  for (const NodeId node : {alone, leader}) {
    EXPECT_EQ(job.health(node).cause, Cause::wrong_token);
    EXPECT_EQ(job.health(node).node, node);
  }
}

TEST(Health, WaitingRestoreNamesTheNodeWithAWrongToken) {
  Cluster job(4, 4);
  for (Rank rank = 0; rank < 3; ++rank) job.hello(rank, rank);
  for (Rank rank = 0; rank < 3; ++rank) job.ask_restore(rank);
  job.advance(1000);
  job.feed(*job.current_leader(), Observed{.distrusted = {7}});
  job.advance(500);
  EXPECT_EQ(job.health(0).cause, Cause::wrong_token);
  EXPECT_EQ(job.health(0).node, 7u);
}

TEST(Health, EveryCauseHasItsOwnNameAndExplanation) {
  std::set<std::string> words;
  for (int number = 1; number <= static_cast<int>(last_cause); ++number) {
    Health health;
    health.cause = static_cast<Cause>(number);
    EXPECT_FALSE(explain(health, name_of).empty()) << number;
    words.insert(cause_name(health.cause));
  }
  EXPECT_EQ(words.size(), static_cast<std::size_t>(last_cause));
}

TEST(Health, TimesAloneDoNotChangeTheVerdict) {
  Job job;
  job.train(5);
  job.advance(1000);
  std::size_t sent = 0;
  job.on_directive = [&](const Directive&) { ++sent; };
  job.advance(1000);
  EXPECT_LE(sent, 4u * 5) << "directives answer reports, which come each 250 ms";
}

}  // namespace
}  // namespace ckpt::core
