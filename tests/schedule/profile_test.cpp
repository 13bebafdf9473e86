#include "schedule/profile.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace ckpt::schedule {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two collectives of 0.1 s; `late_s` moves the second one.
IterationTimeline iteration(double late_s = 0, double scale = 1) {
  return {1.0 * scale, {{0.2 * scale, 0.3 * scale}, {(0.6 + late_s) * scale, (0.7 + late_s) * scale}}};
}

TEST(IdleSpans, LieBetweenCommunicationsAndAtBothEnds) {
  EXPECT_THAT(idle_spans_s({1, {{0.25, 0.5}, {0.75, 0.875}}}),
              ElementsAre(DoubleEq(0.25), DoubleEq(0.25), DoubleEq(0.125)));
}

TEST(IdleSpans, CoverAnIterationWithoutCommunication) { EXPECT_THAT(idle_spans_s({2, {}}), ElementsAre(DoubleEq(2))); }

TEST(IdleSpans, AreEmptyBetweenOverlappingCommunications) {
  EXPECT_THAT(idle_spans_s({1, {{0.125, 0.75}, {0.25, 0.5}, {0.5, 0.875}}}),
              ElementsAre(DoubleEq(0.125), 0, 0, DoubleEq(0.125)));
  EXPECT_THAT(idle_spans_s({1, {{0, 1.5}}}), ElementsAre(0, 0)) << "one that outlasts its iteration";
}

TEST(Recorder, ReturnsTheTimelineOfTheIteration) {
  Recorder recorder;
  recorder.begin_iteration(100);
  recorder.comm_begin(101);
  recorder.comm_begin(102);
  recorder.comm_end(103);
  recorder.comm_end(105);
  const IterationTimeline timeline = recorder.end_iteration(110);
  EXPECT_EQ(timeline.length_s, 10);
  ASSERT_EQ(timeline.busy.size(), 2u);
  EXPECT_EQ(timeline.busy[0].end_s, 3) << "collectives end in the order in which they began";
  EXPECT_EQ(timeline.busy[1].begin_s, 2);
  EXPECT_EQ(timeline.busy[1].end_s, 5);
  EXPECT_EQ(recorder.complaint(), "");
}

TEST(Recorder, ReportsUnbalancedHooksAndContinues) {
  Recorder recorder;
  recorder.begin_iteration(0);
  recorder.comm_end(1);
  EXPECT_THAT(recorder.end_iteration(2).busy, IsEmpty());
  EXPECT_THAT(recorder.complaint(), HasSubstr("without a comm_begin()"));

  recorder.begin_iteration(2);
  EXPECT_EQ(recorder.complaint(), "");
  recorder.comm_begin(3);
  const IterationTimeline open = recorder.end_iteration(6);
  EXPECT_EQ(open.busy.at(0).end_s, 4);
  EXPECT_THAT(recorder.complaint(), HasSubstr("1 collectives had not ended"));

  recorder.begin_iteration(6);
  EXPECT_THAT(recorder.end_iteration(7).busy, IsEmpty()) << "nothing of the last iteration is left";
}

TEST(Profiler, LearnsMeanAndDeviationOfEverySpan) {
  Profiler profiler({.iterations = 4});
  for (const double late_s : {-0.02, 0.02, -0.02, 0.02}) {
    EXPECT_TRUE(profiler.is_learning());
    profiler.add(iteration(late_s));
  }
  ASSERT_FALSE(profiler.is_learning());
  const Profile& profile = profiler.profile();
  ASSERT_EQ(profile.spans.size(), 3u);
  EXPECT_NEAR(profile.spans[0].mean_s, 0.2, 1e-9);
  EXPECT_NEAR(profile.spans[0].deviation_s, 0, 1e-9);
  EXPECT_NEAR(profile.spans[1].mean_s, 0.3, 1e-9);
  EXPECT_NEAR(profile.spans[1].deviation_s, 0.02, 1e-9);
  EXPECT_NEAR(profile.spans[1].start_s, 0.3, 1e-9);
  EXPECT_NEAR(profile.spans[2].start_s, 0.7, 1e-9);
  EXPECT_NEAR(profile.iteration_s, 1, 1e-9);
  EXPECT_NEAR(profile.idle_s(), 0.8, 1e-9);
  EXPECT_NEAR(profile.normalized_deviation, 0.04 / 0.8, 1e-9);
  EXPECT_EQ(profile.iterations, 4u);
}

TEST(Profiler, DoesNotMixPatterns) {
  Profiler profiler({.iterations = 3});
  profiler.add({5, {{1, 2}, {2, 3}, {3, 4}}});  // the first one makes connections
  for (int i = 0; i < 3; ++i) profiler.add(iteration());
  ASSERT_FALSE(profiler.is_learning());
  EXPECT_NEAR(profiler.profile().iteration_s, 1, 1e-9);
}

TEST(Profiler, KeepsItsProfileWhilePatternsOnlyVary) {
  Profiler profiler({.iterations = 3, .window = 4});
  for (int i = 0; i < 3; ++i) profiler.add(iteration());
  for (int i = 0; i < 100; ++i) profiler.add(iteration(i % 2 == 0 ? 0.1 : -0.1, i % 3 == 0 ? 1.1 : 1));
  // An evaluation now and then.
  for (int i = 0; i < 100; ++i) profiler.add(i % 10 == 0 ? IterationTimeline{3, {}} : iteration());
  EXPECT_FALSE(profiler.is_learning());
  EXPECT_EQ(profiler.relearned(), 0u);
}

TEST(Profiler, LearnsAgainWhenThePatternChanges) {
  const IterationTimeline others[] = {iteration(0, 2), {1, {{0.5, 0.6}}}, {1, {{0.1, 0.5}, {0.5, 0.9}}}};
  for (const IterationTimeline& other : others) {
    Profiler profiler({.iterations = 3, .window = 4});
    for (int i = 0; i < 3; ++i) profiler.add(iteration());
    for (int i = 0; i < 20; ++i) profiler.add(other);
    EXPECT_EQ(profiler.relearned(), 1u);
    ASSERT_FALSE(profiler.is_learning());
    EXPECT_NEAR(profiler.profile().iteration_s, other.length_s, 1e-9);
    EXPECT_EQ(profiler.profile().spans.size(), other.busy.size() + 1);
  }
}

TEST(Profiler, RefusesInvalidOptions) {
  EXPECT_THROW(Profiler({.iterations = 0}), std::invalid_argument);
  EXPECT_THROW(Profiler({.window = 0}), std::invalid_argument);
  EXPECT_THROW(Profiler({.drift = 0}), std::invalid_argument);
}

TEST(Profiler, IgnoresASingleMuchLongerIteration) {
  Profiler profiler({4, 4, 0.2});
  for (int i = 0; i < 4; ++i) profiler.add(iteration(0, i == 1 ? 50 : 1));
  ASSERT_FALSE(profiler.is_learning());
  EXPECT_DOUBLE_EQ(profiler.profile().iteration_s, 1);
  EXPECT_EQ(profiler.profile().iterations, 3u);
  for (int i = 0; i < 40; ++i) profiler.add(iteration(0, i % 4 == 0 ? 50 : 1));
  EXPECT_EQ(profiler.relearned(), 0u);
}

TEST(Profiler, LearnsDespiteOccasionalUnusualIterations) {
  Profiler profiler({20, 10, 0.2});
  for (int i = 0; i < 24; ++i) profiler.add(i % 6 == 5 ? IterationTimeline{3, {{0.5, 1}}} : iteration());
  ASSERT_FALSE(profiler.is_learning());
  EXPECT_EQ(profiler.profile().iterations, 20u);
  EXPECT_EQ(profiler.profile().spans.size(), 3u);
}

}  // namespace
}  // namespace ckpt::schedule
