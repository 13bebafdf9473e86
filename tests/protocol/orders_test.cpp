// What a root orders that has not heard every node yet.
#include <gtest/gtest.h>

#include "cluster.hpp"
#include "protocol/root.hpp"

namespace ckpt::protocol {
namespace {

// Of a life of three nodes with a rank each, whose shards are a parity group, and of a node that was one of theirs
// before.
class NewRoot : public ::testing::Test {
 protected:
  static constexpr NodeId former_member = 7;

  NewRoot() : root_(Config{}, 2, 0) {
    std::vector<Seat> seats;
    for (Rank rank = 0; rank < 3; ++rank)
      seats.push_back({rank, rank, 100 + rank, "", main_shard(rank), private_shard(rank)});
    LifeRecord life;
    life.epoch = 2;
    life.incarnation = 1;
    life.world_size = 3;
    life.decision.verdict = Verdict::fresh;
    life.protection = placement::Protection::of_parity(3, 1);
    life.seats = name_of(1, seats);
    root_.on(LifeRead{1, life});
    root_.on(SeatsRead{life.seats, seats});
  }

  // Its rank has captured these iterations, or it has kept them of `rank`.
  void hear(NodeId node, Rank rank, const std::vector<std::int64_t>& iterations) {
    Report report;
    report.node = node;
    report.arena_id = 100 + node;
    report.agent_id = report.sequence = 1;
    report.epoch = 2;
    for (const std::int64_t iteration : iterations) {
      for (const auto& shard : {main_shard(rank), private_shard(rank)})
        report.pieces.push_back(piece_of(shard, Version(1, iteration), 3));
    }
    if (node == rank) {
      RankReport trainer{rank, 50 + rank, 1, 3, main_shard(rank), private_shard(rank)};
      trainer.attempted = iterations.back();
      report.ranks.push_back(trainer);
    }
    root_.on(node, report, ++now_);
  }

  // The iterations of which the node is told to make its main parity, in that order.
  std::vector<std::int64_t> ordered_of(NodeId node) {
    const std::string shard = parity_name(1, {main_shard(0), main_shard(1), main_shard(2)}, node);
    Effects effects;
    root_.settle(++now_, effects);
    std::vector<std::int64_t> iterations;
    for (const Effect& effect : effects) {
      const auto* send = std::get_if<Send>(&effect);
      if (send == nullptr || send->to != node) continue;
      for (const FetchOrder& order : std::get<Directive>(send->message).fetches) {
        if (order.piece.shard == shard) iterations.push_back(order.piece.version.iteration());
      }
    }
    return iterations;
  }

 private:
  Root root_;
  TimeMs now_ = 10;
};

TEST_F(NewRoot, OrdersWhatIsNotCommittedYetWhenItHasHeardEveryMember) {
  hear(0, 0, {2, 3});
  hear(2, 2, {2, 3});
  hear(former_member, 1, {3});
  EXPECT_EQ(ordered_of(0), std::vector<std::int64_t>{}) << "of 3 all is known, of 2 it is not";
  hear(1, 1, {2, 3});
  EXPECT_EQ(ordered_of(0), (std::vector<std::int64_t>{2, 3}));
}

}  // namespace
}  // namespace ckpt::protocol
