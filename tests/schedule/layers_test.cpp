#include "schedule/layers.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <stdexcept>

namespace ckpt::schedule {
namespace {

using Activity = DeviceActivity;

CopyRequest request(std::uint64_t state_bytes, bool separate_paths = false) {
  CopyRequest request;
  request.spans = {{Activity::compute, 1}, {Activity::communicate, 1}, {Activity::bubble, 1}, {Activity::compute, 1}};
  request.state_bytes = state_bytes;
  request.chunk_bytes = 100;
  request.usable = 0.5;
  request.link = {0, 1000};
  request.separate_paths = separate_paths;
  return request;
}

TEST(Layers, UseBubblesFirstThenComputationThenCommunication) {
  const CopyPlan all = plan_copies(request(2000, true));
  EXPECT_EQ(all.bubble_bytes, 500u);
  EXPECT_EQ(all.compute_bytes, 1000u);
  EXPECT_EQ(all.communicate_bytes, 500u);
  EXPECT_EQ(all.overrun_s, 0);
  EXPECT_EQ(all.copies.front(), (PlannedCopy{2, 0, 100})) << "the bubble comes last in time";

  const CopyPlan little = plan_copies(request(400, true));
  EXPECT_EQ(little.bubble_bytes, 400u);
  EXPECT_EQ(little.compute_bytes + little.communicate_bytes, 0u);
}

TEST(Layers, AvoidCommunicationThatSharesThePath) {
  const CopyPlan plan = plan_copies(request(2000, false));
  EXPECT_EQ(plan.communicate_bytes, 0u);
  EXPECT_DOUBLE_EQ(plan.overrun_s, 0.5);
}

TEST(Layers, PlaceEveryByteOnceAndOverfillNoSpan) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 2000; ++round) {
    CopyRequest any;
    for (std::size_t i = 0; i < random() % 12; ++i)
      any.spans.push_back({static_cast<Activity>(random() % 3), 1e-3 * static_cast<double>(random() % 100)});
    any.state_bytes = random() % 100'000;
    any.chunk_bytes = 1 + random() % 5000;
    any.link = {1e-3 * static_cast<double>(random() % 3), 1e6};
    any.separate_paths = random() % 2 == 0;
    const CopyPlan plan = plan_copies(any);
    std::uint64_t next = 0;
    std::map<std::uint32_t, double> used_s;
    for (const PlannedCopy& copy : plan.copies) {
      ASSERT_EQ(copy.first_byte, next);
      ASSERT_GT(copy.size_bytes, 0u);
      ASSERT_LE(copy.size_bytes, any.chunk_bytes);
      next += copy.size_bytes;
      used_s[copy.span] += any.link.time_s(copy.size_bytes);
    }
    ASSERT_EQ(next, any.state_bytes);
    for (std::uint32_t i = 0; i < any.spans.size(); ++i) {
      ASSERT_LE(used_s[i], any.usable * any.spans[i].length_s + 1e-9);
      if (any.spans[i].activity == Activity::communicate && !any.separate_paths) {
        ASSERT_EQ(used_s[i], 0);
      }
    }
    ASSERT_NEAR(used_s[static_cast<std::uint32_t>(any.spans.size())], plan.overrun_s, 1e-9);
  }
}

TEST(Layers, RefuseInvalidRequests) {
  const auto refuses = [](auto change) {
    CopyRequest bad = request(1000);
    change(bad);
    EXPECT_THROW(plan_copies(bad), std::invalid_argument);
  };
  refuses([](CopyRequest& bad) { bad.chunk_bytes = 0; });
  refuses([](CopyRequest& bad) { bad.usable = 0; });
  refuses([](CopyRequest& bad) { bad.usable = 1; });
  refuses([](CopyRequest& bad) { bad.usable = NAN; });
  refuses([](CopyRequest& bad) { bad.link.bytes_per_s = 0; });
  refuses([](CopyRequest& bad) { bad.link.startup_s = -1; });
  refuses([](CopyRequest& bad) { bad.spans.push_back({Activity::bubble, -1}); });
  refuses([](CopyRequest& bad) { bad.spans.push_back({Activity::bubble, NAN}); });
}

TEST(Bubbles, MatchReftsEstimateForThe1F1BSchedule) {
  EXPECT_DOUBLE_EQ(bubble_time_1f1b_s(0, 4, 0.5), 3.0);  // (P - 1) times a forward and a backward pass
  EXPECT_DOUBLE_EQ(bubble_time_1f1b_s(3, 4, 0.5), 2.7);
  EXPECT_DOUBLE_EQ(bubble_time_1f1b_s(0, 1, 0.5), 0) << "no pipeline, no bubbles";
  for (std::uint32_t stages = 1; stages < 70; ++stages)
    for (std::uint32_t stage = 0; stage < stages; ++stage) ASSERT_GE(bubble_time_1f1b_s(stage, stages, 1), 0);
  EXPECT_THROW(bubble_time_1f1b_s(4, 4, 1), std::invalid_argument);
  EXPECT_THROW(bubble_time_1f1b_s(0, 4, -1), std::invalid_argument);
  EXPECT_THROW(bubble_time_1f1b_s(0, 4, NAN), std::invalid_argument);
}

}  // namespace
}  // namespace ckpt::schedule
