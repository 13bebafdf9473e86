// Messages overtake each other: whatever the order, the newest word of each counts.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/relay.hpp"
#include "lone_node.hpp"

namespace ckpt::core {
namespace {

// ---- Directives ----

Directive directive_of(std::uint64_t epoch, std::uint64_t sequence) {
  Directive directive;
  directive.leader = lone_leader;
  directive.epoch = epoch;
  directive.sequence = sequence;
  directive.incarnation = 10 * epoch + sequence;
  return directive;
}

TEST(Directives, NewestOfTheNewestLeaderWinsInAnyOrder) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> order{{5, 1}, {5, 2}, {5, 3}, {6, 1}, {6, 2}};
  do {
    LoneNode node{Config{}};
    node.follow(lone_leader, 5);
    std::pair<std::uint64_t, std::uint64_t> newest;
    for (const auto& [epoch, sequence] : order) {
      node.receive(lone_leader, directive_of(epoch, sequence));
      newest = std::max(newest, {epoch, sequence});
      ASSERT_EQ(node.status().incarnation, 10 * newest.first + newest.second);
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

// ---- Reports ----

// A job of two that has committed. Node 1 has another part of that with each word of it: a run of its agent,
// and the number of the report in that run.
class NodeWithManyReports {
 public:
  using Word = std::pair<std::uint64_t, std::uint64_t>;
  static constexpr std::uint64_t all = 15;

  NodeWithManyReports() {
    for (const NodeId node : {0u, 1u}) say(node, {1, 1}, all);
  }
  bool has_committed() const { return leader_.status().committed == checkpoint(); }
  void say(const Word& word, std::uint64_t which) { say(1, word, which); }
  // Which pieces it is taken to have, by what it is told to fetch.
  std::uint64_t believed() const {
    std::uint64_t which = all;
    for (const FetchOrder& order : leader_.newest_to<Directive>(1).fetches) {
      for (std::size_t i = 0; i < 4; ++i)
        if (order.piece.shard == shards()[i]) which &= ~(std::uint64_t{1} << i);
    }
    return which;
  }
  // Node 0 alone goes on talking.
  void leave_silent(TimeMs for_ms) {
    for (TimeMs ms = 0; ms < for_ms; ms += 100) {
      leader_.now += 100;
      say(0, {1, static_cast<std::uint64_t>(leader_.now)}, all);
    }
  }

 private:
  static CheckpointId checkpoint() { return {1, 3}; }
  static std::vector<std::string> shards() {
    return {main_shard(0), main_shard(1), private_shard(0), private_shard(1)};
  }
  void say(NodeId node, const Word& word, std::uint64_t which) {
    Report report = leader_.report_of(node, checkpoint().iteration());
    report.agent_id = word.first;
    report.sequence = word.second;
    report.highest_commit = leader_.status().committed;
    for (std::size_t i = 0; i < 4; ++i)
      if ((which >> i & 1) != 0) report.pieces.push_back(piece_of(shards()[i], checkpoint(), 2));
    leader_.say(report);
  }

  LoneLeader leader_{2, placement::Protection::of_copies(2)};
};

TEST(Reports, NewestOfTheNewestAgentWinsInAnyOrder) {
  std::vector<NodeWithManyReports::Word> order{{1, 7}, {1, 8}, {2, 1}, {2, 2}, {3, 1}};
  do {
    NodeWithManyReports node;
    ASSERT_TRUE(node.has_committed());
    NodeWithManyReports::Word newest;
    for (const auto& word : order) {
      node.say(word, 3 * word.first + word.second % 3);
      newest = std::max(newest, word);
      ASSERT_EQ(node.believed(), 3 * newest.first + newest.second % 3);
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

// Agents are numbered by a clock, which may have been set back.
TEST(Reports, LowerNumberedAgentCountsOnceTheEarlierOneIsSilent) {
  NodeWithManyReports node;
  node.say({5, 1}, 3);
  node.say({4, 9}, 1);
  EXPECT_EQ(node.believed(), 3u);
  node.leave_silent(2500);
  node.say({4, 10}, 1);
  EXPECT_EQ(node.believed(), 1u);
}

// ---- In a relay's batch ----

TEST(Batches, CarryTheNewestReportOfTheNewestAgentInAnyOrder) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> order{{1, 7}, {1, 8}, {2, 1}, {2, 2}, {3, 1}};
  do {
    Config config;
    config.node = 1;
    Relay relay(config);
    relay.follow(lone_leader, 1);
    Effects effects;
    for (const auto& [agent, sequence] : order) {
      Report report;
      report.node = 2;
      report.agent_id = agent;
      report.sequence = sequence;
      relay.on(2, report, 100, effects);
    }
    relay.reconcile(200, effects);
    const auto& batch = std::get<ReportBatch>(std::get<Send>(effects.back()).message);
    ASSERT_EQ(batch.reports.size(), 1u);
    EXPECT_EQ(batch.reports[0].agent_id, 3u);
    EXPECT_EQ(batch.reports[0].sequence, 1u);
  } while (std::next_permutation(order.begin(), order.end()));
}

}  // namespace
}  // namespace ckpt::core
