// A rank starts with two slots of its own. It gets a third where its captures wait for replication, and only there.
#include <gtest/gtest.h>

#include "lone_node.hpp"

namespace ckpt::core::slot_demand {
namespace {

constexpr Rank rank = 0;

class OneRank : public ::testing::Test {
 protected:
  OneRank() {
    node_.follow(lone_leader, 5);
    node_.handle(TrainerHello{rank, 50, 0, 1, main_shard(rank), private_shard(rank)});
    node_.handle(RestoreAsked{rank});
    obey();
    node_.handle(RestoreDone{rank});
    reserve(2);
  }

  void reserve(std::uint8_t slots) {
    node_.handle(SegmentsReady{rank, {main_shard(rank), private_shard(rank)}, slots});
  }
  void obey(CheckpointId committed = {}) {
    Directive directive;
    directive.leader = lone_leader;
    directive.epoch = 5;
    directive.sequence = ++sequence_;
    directive.incarnation = 1;
    directive.decision.verdict = Verdict::fresh;
    directive.admitted.push_back({rank, 50, Share{}});
    directive.committed = committed;
    node_.receive(lone_leader, directive);
  }
  std::size_t grants() const { return node_.all<GrantSlots>().size(); }
  // The trainer offers an iteration. It takes it if it has a grant, as it then does.
  void offer(std::int64_t iteration) {
    if (grants() == used_grants_) return node_.handle(Progress{rank, iteration, -1});
    ++used_grants_;
    const CheckpointId checkpoint(1, iteration);
    node_.handle(
        Captured{rank, {piece_of(main_shard(rank), checkpoint, 1), piece_of(private_shard(rank), checkpoint, 1)}});
    newest_ = checkpoint;
  }
  // The newest capture is committed, and older pieces' slots are free again.
  void commit() {
    const std::size_t before = node_.all<DropSlot>().size();
    obey(newest_);
    const auto drops = node_.all<DropSlot>();
    for (std::size_t i = before; i < drops.size(); ++i) node_.handle(SlotReleased{drops[i].slot});
  }
  // The iteration after a capture comes before its commit, so it finds no slot.
  void train_while_replication_takes_longer(int captures) {
    for (int i = 0; i < captures; ++i) {
      offer(++iteration_);
      offer(++iteration_);
      commit();
    }
  }
  void train_while_traffic_fits(int captures) {
    for (int i = 0; i < captures; ++i) {
      offer(++iteration_);
      commit();
    }
  }
  std::vector<AddSlots> added() const { return node_.all<AddSlots>(); }

  LoneNode node_{Config{}};
  std::int64_t iteration_ = 0;

 private:
  std::uint64_t sequence_ = 0;
  std::size_t used_grants_ = 0;
  CheckpointId newest_;
};

TEST_F(OneRank, CapturesEveryIterationWithTwoSlotsIfCommitsAreFast) {
  train_while_traffic_fits(100);
  EXPECT_EQ(node_.find(main_shard(rank), CheckpointId(1, 100)) != nullptr, true);
  EXPECT_TRUE(added().empty());
}

TEST_F(OneRank, RequestsAThirdSlotIfSlowReplicationSkipsIterations) {
  train_while_replication_takes_longer(40);
  ASSERT_EQ(added().size(), 1u);  // once, though nobody answers
  EXPECT_EQ(added()[0].slots, 3);
  EXPECT_EQ(added()[0].shards, (std::vector{main_shard(rank), private_shard(rank)}));
}

TEST_F(OneRank, SkipsNoIterationWithAThirdSlot) {
  train_while_replication_takes_longer(10);
  reserve(3);
  const std::int64_t first = iteration_ + 1;
  offer(++iteration_);
  offer(++iteration_);  // the one before is not committed yet
  EXPECT_NE(node_.find(main_shard(rank), CheckpointId(1, first)), nullptr);
  EXPECT_NE(node_.find(main_shard(rank), CheckpointId(1, first + 1)), nullptr);
}

TEST_F(OneRank, RequestsNoFourthSlotWithoutStorage) {
  train_while_replication_takes_longer(10);
  reserve(3);
  for (int i = 0; i < 100; ++i) {
    for (int skipped = 0; skipped < 4; ++skipped) offer(++iteration_);
    commit();
  }
  EXPECT_EQ(added().size(), 1u);
}

TEST_F(OneRank, RequestsNoSlotAfterASingleLongWait) {
  for (int i = 0; i < 4; ++i) {
    train_while_traffic_fits(40);
    for (int skipped = 0; skipped < 500; ++skipped) offer(++iteration_);
    commit();
  }
  EXPECT_TRUE(added().empty());
}

// It may be full of what is still replicated, and an iteration that all ranks skip needs no slot.
TEST_F(OneRank, DoesNotCountSkippedIterationsWithAnOpenGrant) {
  for (int i = 0; i < 40; ++i) {
    node_.handle(Progress{rank, ++iteration_, -1});
    train_while_traffic_fits(1);
  }
  EXPECT_TRUE(added().empty());
}

}  // namespace
}  // namespace ckpt::core::slot_demand
