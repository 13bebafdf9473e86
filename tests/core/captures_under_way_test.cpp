// A checkpoint is given up when it can never be complete, and not while a rank may still bring its part.
#include <gtest/gtest.h>

#include "lone_node.hpp"

namespace ckpt::core::captures_under_way_test {
namespace {

constexpr Rank ranks = 2;

// What a rank has made of iteration 5.
enum class Stage : std::uint8_t { before, capturing, captured, skipped };

Report at(LoneLeader& leader, NodeId node, Stage stage) {
  const CheckpointId checkpoint(1, 5);
  Report report = leader.report_of(node, stage == Stage::before ? 4 : 5);
  if (stage == Stage::capturing) report.ranks[0].capturing = 5;
  if (stage != Stage::captured) return report;
  for (const auto& shard : {main_shard(node), private_shard(node)})
    report.pieces.push_back(piece_of(shard, checkpoint, ranks));
  return report;
}

TEST(CapturesUnderWay, AreAwaitedUnlessARankSkippedTheIteration) {
  const std::vector<Stage> stages{Stage::before, Stage::capturing, Stage::captured, Stage::skipped};
  for (const Stage first : stages) {
    for (const Stage second : stages) {
      LoneLeader leader(ranks, placement::Protection::of_copies(ranks));
      leader.say(at(leader, 0, first));
      leader.say(at(leader, 1, second));
      const Directive directive = leader.newest_to<Directive>(1);
      const bool is_there = first == Stage::captured || second == Stage::captured;
      const bool is_skipped = first == Stage::skipped || second == Stage::skipped;
      EXPECT_EQ(directive.abandoned.size(), is_there && is_skipped ? 1u : 0u)
          << static_cast<int>(first) << " " << static_cast<int>(second);
    }
  }
}

// A leader that has not heard every member of the incarnation knows too little to give anything up.
TEST(CapturesUnderWay, AreNotAbandonedBeforeTheLeaderHeardEveryMember) {
  LoneLeader leader(3, placement::Protection::of_copies(2));
  leader.say(at(leader, 0, Stage::captured));
  leader.say(at(leader, 1, Stage::skipped));
  EXPECT_TRUE(leader.newest_to<Directive>(1).abandoned.empty());
  leader.say(at(leader, 2, Stage::before));
  EXPECT_EQ(leader.newest_to<Directive>(2).abandoned.size(), 1u);
}

}  // namespace
}  // namespace ckpt::core::captures_under_way_test
