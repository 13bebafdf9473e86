// Who sits where is in records of its own: written before the life's record names it, and read by the next root.
#include "protocol/seating.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "cluster.hpp"

namespace ckpt::protocol {
namespace {

std::vector<Seat> some_seats() {
  return {{0, 7, 107, "row0/rack1", "model", "rank0.private", 4},
          {1, 3, 103, "row0/rack2", "other", "rank1.private", 1},
          {2, 7, 107, "row0/rack1", "model", "rank2.private", 4}};
}

TEST(Seating, HasEachNodeOnceAndEachCutShardOnce) {
  const Seating seating(5, some_seats());
  EXPECT_EQ(seating.members(), (std::vector<Member>{{7, 107}, {3, 103}}));
  EXPECT_EQ(seating.cuts(), (std::vector<Cut>{{"model", 4}}));
  EXPECT_TRUE(seating.is_member(3, 103));
  EXPECT_FALSE(seating.is_member(3, 104));
  EXPECT_FALSE(seating.is_member(4, 103));
}

TEST(SeatsName, IsThatOfTheseSeatsAndNoOthers) {
  const auto name = name_of(5, some_seats());
  EXPECT_EQ(name.life, 5u);
  EXPECT_EQ(name.count, 3u);
  EXPECT_EQ(Seating(5, some_seats()).name(), name);
  EXPECT_TRUE(is_named(name, some_seats()));
  EXPECT_NE(name_of(6, some_seats()).digest, name.digest);
  const std::vector<std::function<void(Seat&)>> changes{
      [](Seat& seat) { ++seat.rank; },           [](Seat& seat) { ++seat.node; },
      [](Seat& seat) { ++seat.arena_id; },       [](Seat& seat) { seat.domain += "0"; },
      [](Seat& seat) { seat.main_shard = "m"; }, [](Seat& seat) { seat.private_shard.clear(); },
      [](Seat& seat) { ++seat.restored_parts; }, [](Seat& seat) { std::swap(seat.domain, seat.main_shard); }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    for (std::size_t which = 0; which < 3; ++which) {
      auto seats = some_seats();
      changes[i](seats[which]);
      EXPECT_FALSE(is_named(name, seats)) << i;
    }
  }
  auto seats = some_seats();
  seats.pop_back();
  EXPECT_FALSE(is_named(name, seats));
  EXPECT_FALSE(is_named(name, {}));
}

TEST(SeatsName, RanksAreThereInOrderWithoutGaps) {
  auto seats = some_seats();
  std::swap(seats[0], seats[1]);
  EXPECT_FALSE(is_named(name_of(5, seats), seats));
}

// Four ranks that have committed iteration 7 of life 1.
class SeatsInTheStore : public ::testing::Test {
 protected:
  void SetUp() override {
    cluster.start_life(own_node);
    cluster.begin_training();
    cluster.snapshot_all(7);
    ASSERT_EQ(cluster.status(0).committed, Version(1, 7));
  }
  void restart() {
    cluster.ready.clear();
    cluster.start_life(own_node);
    cluster.advance(1000);
  }
  // The next life's decision is under way: its seats are written, its record is not.
  SwapLife decide_halfway() {
    cluster.ready.clear();
    for (Rank rank = 0; rank < 4; ++rank) cluster.hello(rank, rank);
    cluster.swapping = false;
    for (Rank rank = 0; rank < 4; ++rank) cluster.ask_restore(rank);
    cluster.advance(1000);
    return cluster.held_swaps.empty() ? SwapLife{} : cluster.held_swaps.front().second;
  }
  Cluster cluster{4, 4};
};

TEST_F(SeatsInTheStore, AreReadByTheNextRootWhichGoesOn) {
  EXPECT_EQ(cluster.seats_asked, 0);
  cluster.change_root();
  cluster.advance(1000);
  EXPECT_EQ(cluster.seats_asked, 1);
  cluster.snapshot_all(8);
  EXPECT_EQ(cluster.commits.at(0), Version(1, 8));
}

TEST_F(SeatsInTheStore, ARootThatHasYetToReadThemTellsNobodyAnything) {
  cluster.reading_seats = false;
  cluster.change_root();
  int told = 0;
  cluster.on_directive = [&](const Directive&) { ++told; };
  const NodeId root = *cluster.root();
  cluster.advance(1000);
  cluster.snapshot_all(8);
  EXPECT_EQ(told, 0);
  EXPECT_EQ(cluster.commits.at(0), Version(1, 7));
  cluster.reading_seats = true;
  cluster.advance(20'000);  // far longer than a lease: nobody else runs for root meanwhile
  EXPECT_EQ(cluster.root(), root);
  EXPECT_GT(told, 0);
  EXPECT_EQ(cluster.commits.at(0), Version(1, 8));
}

TEST_F(SeatsInTheStore, ThatAreNotWhatTheRecordNamesAreNotTaken) {
  const auto right = cluster.seats.at(cluster.life().seats);
  cluster.seats.at(cluster.life().seats)[2].node = 1;
  cluster.change_root();
  cluster.advance(4000);
  EXPECT_GE(cluster.seats_asked, 2);  // again after a while
  cluster.snapshot_all(8);
  EXPECT_EQ(cluster.commits.at(0), Version(1, 7));
  cluster.seats.at(cluster.life().seats) = right;
  cluster.advance(4000);
  EXPECT_EQ(cluster.commits.at(0), Version(1, 8));
}

TEST_F(SeatsInTheStore, AreThereBeforeTheRecordThatNamesThem) {
  const SwapLife decision = decide_halfway();
  ASSERT_EQ(decision.record.decision.verdict, Verdict::restore);
  EXPECT_TRUE(cluster.seats.contains(decision.record.seats));
  EXPECT_TRUE(cluster.seats.contains(cluster.life().seats)) << "the record still names the others";
  cluster.release_swaps();
  cluster.advance(1000);
  EXPECT_EQ(cluster.life().seats, decision.record.seats);
}

TEST_F(SeatsInTheStore, OfALifeThatWasNeverDecidedAreLeftAloneAndTheNextRootDecides) {
  const SwapLife decision = decide_halfway();
  ASSERT_TRUE(cluster.seats.contains(decision.record.seats));
  cluster.held_swaps.clear();  // the root dies before it could write the decision
  cluster.swapping = true;
  const NodeId lost = *cluster.root();
  cluster.lose(lost);
  cluster.boot(lost);
  cluster.hello(lost, lost);
  cluster.ask_restore(lost);
  cluster.advance(20'000);
  ASSERT_EQ(cluster.ready.size(), 4u);
  EXPECT_EQ(cluster.ready.at(0).decision.version, Version(1, 7));
  EXPECT_NE(cluster.life().seats, decision.record.seats) << "that node's memory is another one";
  EXPECT_EQ(cluster.seating().members().size(), 4u);
  restart();
  EXPECT_EQ(cluster.seats.size(), 1u) << "what no record ever named goes with the others of its life";
}

// Who led is lost with them. The job ends, and its ranks go on from what is in memory when they are started again.
TEST_F(SeatsInTheStore, AreMissedByTheNextLeaderWhichOpensALifeThatRestoresWhatTheirsHasCommitted) {
  cluster.seats.clear();
  cluster.change_root();
  cluster.advance(10'000);
  EXPECT_EQ(cluster.incarnation(), 2u);
  EXPECT_EQ(cluster.fenced.size(), 4u);
  restart();
  cluster.advance(10'000);
  ASSERT_EQ(cluster.ready.size(), 4u);
  EXPECT_EQ(cluster.ready.at(0).decision.version, Version(1, 7));
  cluster.begin_training();
  cluster.snapshot_all(8);
  EXPECT_EQ(cluster.commits.at(0).iteration(), 8);
}

TEST_F(SeatsInTheStore, AreRemovedWhenALaterLifeHasBegun) {
  const SeatsName first = cluster.life().seats;
  restart();
  EXPECT_FALSE(cluster.seats.contains(first));
  EXPECT_EQ(cluster.seats.size(), 1u);
  EXPECT_TRUE(cluster.seats.contains(cluster.life().seats));
}

TEST_F(SeatsInTheStore, TellHowTheRestoredVersionIsCut) {
  Cluster shared(4, 4);
  shared.main_of = [](Rank) { return "model"; };
  shared.start_life(own_node);
  shared.begin_training();
  shared.snapshot_all(7);
  shared.ready.clear();
  shared.start_life(own_node);
  shared.advance(500);
  EXPECT_EQ(shared.seating().cuts(), (std::vector<Cut>{{"model", 4}}));
  EXPECT_TRUE(shared.life().decision.cuts.empty());
  EXPECT_EQ(shared.ready.at(0).main.size(), 4u);
}

}  // namespace
}  // namespace ckpt::protocol
