// A rank's trainer is replaced by the next one. What was meant for the former, or is said of it, changes nothing for
// the one that is there now.
#include <gtest/gtest.h>

#include "lone_node.hpp"

namespace ckpt::core::instances_test {
namespace {

constexpr Rank rank = 0;
constexpr std::uint64_t former = 50;
constexpr std::uint64_t present = 51;

class TwoTrainersOfARank : public ::testing::Test {
 protected:
  TwoTrainersOfARank() { node_.follow(lone_leader, 5); }

  void hello(std::uint64_t instance) {
    node_.handle(TrainerHello{rank, instance, 0, 1, main_shard(rank), private_shard(rank)});
  }
  void obey(Directive directive) {
    directive.leader = lone_leader;
    directive.epoch = 5;
    directive.sequence = ++sequence_;
    directive.incarnation = 1;
    directive.decision.verdict = Verdict::fresh;
    node_.receive(lone_leader, directive);
  }
  static Directive admitting(std::uint64_t instance) {
    Directive directive;
    directive.admitted.push_back({rank, instance, Share{}});
    return directive;
  }
  static Directive refusing(std::uint64_t instance) {
    Directive directive;
    directive.refused.push_back({rank, instance, true, 1, "superseded"});
    return directive;
  }
  // Both say hello one after the other, and the second one gets as far as it can.
  void replace_the_former() {
    hello(former);
    hello(present);
    node_.handle(RestoreAsked{rank});
    node_.handle(SegmentsReady{rank, {main_shard(rank), private_shard(rank)}});
  }
  void start_the_present() {
    replace_the_former();
    obey(admitting(present));
    node_.handle(RestoreDone{rank});
  }

  LoneNode node_{Config{}};

 private:
  std::uint64_t sequence_ = 0;
};

TEST_F(TwoTrainersOfARank, AdmissionOfAFormerTrainerDoesNotAdmitThePresentOne) {
  replace_the_former();
  obey(admitting(former));
  EXPECT_TRUE(node_.all<RestoreReady>().empty());
  EXPECT_EQ(node_.status().ranks.at(0).incarnation, 0u);
  obey(admitting(present));
  EXPECT_EQ(node_.all<RestoreReady>().size(), 1u);
}

TEST_F(TwoTrainersOfARank, RefusalOfTheFormerDoesNotAffectThePresentOne) {
  replace_the_former();
  obey(refusing(former));
  EXPECT_TRUE(node_.all<Fence>().empty());
  EXPECT_TRUE(node_.all<RestoreFailed>().empty());
  obey(refusing(present));
  EXPECT_EQ(node_.all<Fence>().size(), 1u);
  EXPECT_EQ(node_.all<RestoreFailed>().size(), 1u);
}

// No slot is granted for the second time before its writer is proven dead.
TEST_F(TwoTrainersOfARank, EndOfTheFormerTakesNoGrantFromThePresentOne) {
  start_the_present();
  ASSERT_EQ(node_.all<GrantSlots>().size(), 1u);
  node_.handle(TrainerExited{rank, former});
  hello(present);  // repeated
  obey(admitting(present));
  EXPECT_EQ(node_.all<GrantSlots>().size(), 1u);
  ASSERT_EQ(node_.status().ranks.size(), 1u);
  node_.handle(Captured{
      rank, {piece_of(main_shard(rank), CheckpointId(1, 1), 1), piece_of(private_shard(rank), CheckpointId(1, 1), 1)}});
  EXPECT_EQ(node_.status().pieces.size(), 2u);
}

// It would capture into what it still restores from, or what it has not restored.
TEST_F(TwoTrainersOfARank, GetNoGrantBeforeTheyHaveRestored) {
  replace_the_former();
  obey(admitting(present));
  ASSERT_EQ(node_.all<RestoreReady>().size(), 1u);
  EXPECT_TRUE(node_.all<GrantSlots>().empty());
  node_.handle(RestoreDone{rank});
  EXPECT_EQ(node_.all<GrantSlots>().size(), 1u);
}

}  // namespace
}  // namespace ckpt::core::instances_test
