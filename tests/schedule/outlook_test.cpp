#include "schedule/outlook.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <stdexcept>

namespace ckpt::schedule {
namespace {

using ::testing::HasSubstr;
using Kind = Mark::Kind;

constexpr bool idle = false, busy = true;
constexpr bool quiet = true, beside_traffic = false;

OutlookOptions options(std::uint32_t iterations = 2) {
  OutlookOptions options;
  options.profiler.iterations = iterations;
  options.usable = 0.5;
  options.silence_s = 10;
  options.first_silence_s = 200;
  return options;
}

// A trainer whose iterations of 1 s communicate from 0.2 to 0.4 and from 0.6 to 0.9.
class Trainer {
 public:
  explicit Trainer(RankOutlook& outlook) : outlook_(outlook) {}
  void iterations(int count) {
    for (int i = 0; i < count; ++i) {
      communicates(0.2, 0.4);
      communicates(0.6, 0.9);
      ends(1);
    }
  }
  void communicates(double begin_s, double end_s) {
    outlook_.heard({Kind::begin, at(begin_s)});
    outlook_.heard({Kind::end, at(end_s)});
  }
  void ends(double length_s) {
    began_s_ += length_s;
    outlook_.heard({Kind::iteration, began_s_});
  }
  double at(double s) const { return began_s_ + s; }  // within this iteration

 private:
  RankOutlook& outlook_;
  double began_s_ = 1000;
};

TEST(Outlook, IsFreeWhereNoHookWasEverHeard) {
  RankOutlook outlook(options());
  EXPECT_EQ(outlook.outlook(5, idle, quiet).state, NetworkState::free);
  for (int i = 0; i < 50; ++i) outlook.heard({Kind::iteration, 1.0 * i});
  EXPECT_EQ(outlook.outlook(49.5, idle, quiet).state, NetworkState::free) << "iterations without communication";
}

TEST(Outlook, HoldsEverythingBackWhileItLearnsInQuietAndThenNoMore) {
  RankOutlook outlook(options(2));
  Trainer trainer(outlook);
  trainer.iterations(1);  // of which the beginning is not known
  EXPECT_EQ(outlook.outlook(trainer.at(0.1), idle, quiet).state, NetworkState::learning);
  trainer.iterations(1);
  EXPECT_EQ(outlook.learned(), 1u);
  EXPECT_EQ(outlook.outlook(trainer.at(0.1), idle, quiet).state, NetworkState::learning);
  EXPECT_EQ(outlook.outlook(trainer.at(0.1), busy, quiet).state, NetworkState::learning);
  EXPECT_EQ(outlook.outlook(trainer.at(0.1), busy, beside_traffic).state, NetworkState::busy);
  const Outlook loud = outlook.outlook(trainer.at(0.1), idle, beside_traffic);
  EXPECT_EQ(loud.state, NetworkState::idle);
  EXPECT_TRUE(std::isinf(loud.idle_s)) << "the gate alone decides";
  trainer.iterations(1);
  EXPECT_FALSE(outlook.learned());
  EXPECT_EQ(outlook.outlook(trainer.at(0.1), idle, quiet).state, NetworkState::idle);
}

TEST(Outlook, KnowsTheLongestSpanOfAnIterationWithWhatTheNextOneBeginsWith) {
  RankOutlook outlook(options(2));
  EXPECT_TRUE(std::isinf(outlook.longest_idle_s()));
  Trainer(outlook).iterations(5);
  ASSERT_FALSE(outlook.learned());
  EXPECT_NEAR(outlook.longest_idle_s(), 0.5 * (0.1 + 0.2), 1e-9) << "0.2 between the two, 0.1 and 0.2 around the end";
}

TEST(Outlook, IsTheUsablePartOfTheSpanLessWhatHasPassedOfIt) {
  RankOutlook outlook(options());
  Trainer trainer(outlook);
  trainer.iterations(3);
  EXPECT_NEAR(outlook.outlook(trainer.at(0.05), idle, quiet).idle_s, 0.5 * 0.2 - 0.05, 1e-6);
  EXPECT_NEAR(outlook.outlook(trainer.at(0.15), idle, quiet).idle_s, 0, 1e-9);
  trainer.communicates(0.2, 0.45);
  EXPECT_NEAR(outlook.outlook(trainer.at(0.45), idle, quiet).idle_s, 0.5 * 0.2, 1e-6);
  EXPECT_NEAR(outlook.outlook(trainer.at(0.5), idle, quiet).idle_s, 0.5 * 0.2 - 0.05, 1e-6);
  EXPECT_EQ(outlook.outlook(trainer.at(0.5), busy, quiet).state, NetworkState::busy) << "whatever the profile says";
}

TEST(Outlook, GoesOnIntoTheNextIterationBehindTheLastCommunication) {
  RankOutlook outlook(options());
  Trainer trainer(outlook);
  trainer.iterations(3);
  trainer.communicates(0.2, 0.4);
  trainer.communicates(0.6, 0.9);
  EXPECT_NEAR(outlook.outlook(trainer.at(0.9), idle, quiet).idle_s, 0.5 * (0.1 + 0.2), 1e-6);
}

TEST(Outlook, LeavesItToTheGateWhereThePatternIsNotTheLearnedOne) {
  RankOutlook outlook(options());
  Trainer trainer(outlook);
  trainer.iterations(3);
  for (int i = 0; i < 3; ++i) trainer.communicates(0.1 + 0.2 * i, 0.2 + 0.2 * i);
  const Outlook seen = outlook.outlook(trainer.at(0.7), idle, quiet);
  EXPECT_EQ(seen.state, NetworkState::idle);
  EXPECT_TRUE(std::isinf(seen.idle_s));
}

TEST(Outlook, IsFreeWhereTheTrainerHasFallenSilentEvenInACommunication) {
  RankOutlook outlook(options());
  Trainer trainer(outlook);
  trainer.iterations(3);
  outlook.heard({Kind::begin, trainer.at(0.2)});
  EXPECT_EQ(outlook.outlook(trainer.at(10), busy, quiet).state, NetworkState::busy);
  EXPECT_EQ(outlook.outlook(trainer.at(10.3), busy, quiet).state, NetworkState::free);
}

TEST(Outlook, TakesNoTrainerForSilentWhoseIterationsAreLong) {
  RankOutlook outlook(options());
  outlook.heard({Kind::iteration, 0});
  outlook.heard({Kind::begin, 10});
  outlook.heard({Kind::end, 20});
  outlook.heard({Kind::iteration, 100});
  EXPECT_EQ(outlook.outlook(100 + 290, idle, quiet).state, NetworkState::learning);
  EXPECT_EQ(outlook.outlook(100 + 310, idle, quiet).state, NetworkState::free);
}

TEST(Outlook, DoesNotWaitForAPatternWhereTrainingHasNone) {
  RankOutlook outlook(options(3));
  Trainer trainer(outlook);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(outlook.outlook(trainer.at(0.1), idle, quiet).state,
              i == 0 ? NetworkState::free : NetworkState::learning);
    for (int j = 0; j <= i % 2; ++j) trainer.communicates(0.2 + 0.2 * j, 0.3 + 0.2 * j);
    trainer.ends(1);
  }
  EXPECT_TRUE(outlook.learned());
  EXPECT_EQ(outlook.outlook(trainer.at(0.1), idle, quiet).state, NetworkState::idle);
}

TEST(Outlook, DoesNotLearnInQuietForEver) {
  OutlookOptions few = options(100);
  few.quiet_s = 30;
  RankOutlook outlook(few);
  Trainer trainer(outlook);
  trainer.iterations(29);
  EXPECT_EQ(outlook.outlook(trainer.at(0.1), idle, quiet).state, NetworkState::learning);
  trainer.iterations(3);
  EXPECT_EQ(outlook.outlook(trainer.at(0.1), idle, quiet).state, NetworkState::idle);
}

TEST(Outlook, SaysNothingOfASpanThatLastsMuchLongerThanItShould) {
  RankOutlook outlook(options());
  Trainer trainer(outlook);
  trainer.iterations(3);
  trainer.communicates(0.2, 0.4);
  EXPECT_NEAR(outlook.outlook(trainer.at(0.79), idle, quiet).idle_s, 0, 1e-9);
  EXPECT_TRUE(std::isinf(outlook.outlook(trainer.at(0.81), idle, quiet).idle_s)) << "an evaluation, say";
  EXPECT_EQ(outlook.outlook(trainer.at(0.81), busy, quiet).state, NetworkState::busy);
}

TEST(Outlook, CountsACommunicationThatCrossesAnIterationsEndToBoth) {
  RankOutlook outlook(options());
  Trainer trainer(outlook);
  for (int i = 0; i < 4; ++i) {  // begins at 0.9, ends at 0.1 of the next one
    if (i != 0) outlook.heard({Kind::end, trainer.at(0.1)});
    trainer.communicates(0.4, 0.5);
    outlook.heard({Kind::begin, trainer.at(0.9)});
    trainer.ends(1);
  }
  ASSERT_FALSE(outlook.learned());
  EXPECT_EQ(outlook.profile().spans.size(), 4u);
  outlook.heard({Kind::end, trainer.at(0.1)});
  EXPECT_NEAR(outlook.outlook(trainer.at(0.1), idle, quiet).idle_s, 0.5 * 0.3, 1e-6);
  trainer.communicates(0.4, 0.5);
  EXPECT_NEAR(outlook.outlook(trainer.at(0.5), idle, quiet).idle_s, 0.5 * 0.4, 1e-6);
}

TEST(Outlook, LearnsNothingFromIterationsWithoutNumber) {
  RankOutlook outlook(options(1));
  Trainer trainer(outlook);
  trainer.iterations(1);
  for (int i = 0; i < 20'000; ++i) trainer.communicates(1e-5 * i, 1e-5 * i + 1e-6);
  EXPECT_TRUE(std::isinf(outlook.outlook(trainer.at(0.3), idle, quiet).idle_s) ||
              outlook.outlook(trainer.at(0.3), idle, quiet).state == NetworkState::learning);
  trainer.ends(1);
  EXPECT_EQ(outlook.learned(), 0u);
}

TEST(Outlook, BeginsWithAProfileThatIsKnown) {
  RankOutlook first(options());
  Trainer(first).iterations(3);
  RankOutlook second(options(), first.profile());
  Trainer trainer(second);
  trainer.iterations(1);  // of which the beginning is not known
  trainer.communicates(0.2, 0.4);
  EXPECT_NEAR(second.outlook(trainer.at(0.4), idle, quiet).idle_s, 0.5 * 0.2, 1e-6);
  EXPECT_FALSE(second.learned());
}

TEST(Outlook, DoesNotLearnFromAnIterationOfWhichMarksWereLost) {
  RankOutlook outlook(options(1));
  Trainer trainer(outlook);
  trainer.iterations(1);
  trainer.communicates(0.2, 0.4);
  outlook.lost_marks(trainer.at(0.5));
  trainer.ends(1);
  EXPECT_EQ(outlook.learned(), 0u);
  trainer.iterations(1);
  ASSERT_FALSE(outlook.learned());
  outlook.lost_marks(trainer.at(0));
  EXPECT_TRUE(std::isinf(outlook.outlook(trainer.at(0.05), idle, quiet).idle_s)) << "where it stands is not known";
  trainer.iterations(1);
  EXPECT_FALSE(std::isinf(outlook.outlook(trainer.at(0.05), idle, quiet).idle_s));
}

TEST(Outlook, OfSeveralRanksIsTheWorst) {
  const Outlook free{NetworkState::free, INFINITY}, shorter{NetworkState::idle, 1}, longer{NetworkState::idle, 2},
      in_use{NetworkState::busy, 0}, learning{NetworkState::learning, 0};
  const Outlook* order[] = {&free, &longer, &shorter, &in_use, &learning};
  for (const Outlook* a : order)
    for (const Outlook* b : order) {
      const Outlook worst = worse_of(*a, *b);
      const Outlook& expected =
          std::find(std::begin(order), std::end(order), a) < std::find(std::begin(order), std::end(order), b) ? *b : *a;
      EXPECT_EQ(worst.state, expected.state);
      EXPECT_EQ(worst.idle_s, expected.idle_s);
    }
}

TEST(Outlook, TellsOfHooksThatAreNotBalancedAndGoesOn) {
  RankOutlook outlook(options(1));
  Trainer trainer(outlook);
  trainer.iterations(1);
  outlook.heard({Kind::begin, trainer.at(0.5)});
  trainer.ends(1);
  EXPECT_THAT(outlook.complaint(), HasSubstr("had not ended"));
  trainer.iterations(1);
  EXPECT_THAT(outlook.complaint(), HasSubstr("had not ended")) << "nor has it since";
  outlook.heard({Kind::end, trainer.at(0.1)});
  trainer.ends(1);
  EXPECT_EQ(outlook.complaint(), "");
}

TEST(Outlook, TakesTimesThatRunBackwardsForEqual) {
  RankOutlook outlook(options(1));
  outlook.heard({Kind::iteration, 10});
  outlook.heard({Kind::begin, 12});
  outlook.heard({Kind::end, 11});
  outlook.heard({Kind::iteration, 15});
  ASSERT_FALSE(outlook.learned());
  EXPECT_DOUBLE_EQ(outlook.profile().iteration_s, 5);
  EXPECT_DOUBLE_EQ(outlook.profile().idle_s(), 5);
}

TEST(Outlook, RefusesOptionsThatMakeNoSense) { EXPECT_THROW(RankOutlook(options(0)), std::invalid_argument); }

}  // namespace
}  // namespace ckpt::schedule
