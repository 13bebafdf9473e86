#include "schedule/link_estimate.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace ckpt::schedule {
namespace {

constexpr std::uint64_t size_unit = 1u << 20;

TEST(LinkEstimate, LearnsTheLinkFromChunksOfDifferentSizes) {
  const LinkModel truth{0.0005, 2e9};
  LinkEstimate estimate;
  for (std::uint64_t i = 0; i < 20; ++i) {
    const std::uint64_t size = size_unit * (1 + i % 4);
    estimate.add(size, truth.time_s(size));
  }
  ASSERT_TRUE(estimate.link());
  EXPECT_NEAR(estimate.link()->startup_s, truth.startup_s, 1e-9);
  EXPECT_NEAR(estimate.link()->bytes_per_s, truth.bytes_per_s, 1);
}

TEST(LinkEstimate, IsUnknownBeforeAFewChunks) {
  LinkEstimate estimate;
  for (int i = 0; i < 3; ++i) {
    estimate.add(size_unit, 0.001);
    EXPECT_FALSE(estimate.link());
  }
  estimate.add(size_unit, 0.001);
  EXPECT_TRUE(estimate.link());
}

TEST(LinkEstimate, PredictsChunksOfTheOnlySizeItHasSeen) {
  const LinkModel truth{0.01, 1e8};
  LinkEstimate estimate;
  for (int i = 0; i < 10; ++i) estimate.add(2 * size_unit, truth.time_s(2 * size_unit));
  EXPECT_NEAR(estimate.link()->time_s(2 * size_unit), truth.time_s(2 * size_unit), 1e-9);
}

TEST(LinkEstimate, AttributesAllTimeToBytesIfAFitIsInvalid) {
  LinkEstimate falling, negative;  // larger ones faster; a start-up time below 0
  for (int i = 0; i < 10; ++i) {
    falling.add(size_unit * (1 + i % 2), 0.02 / (1 + i % 2));
    negative.add(size_unit * (1 + i % 2), i % 2 == 0 ? 0.01 : 0.03);
  }
  for (const LinkEstimate* estimate : {&falling, &negative}) {
    EXPECT_EQ(estimate->link()->startup_s, 0);
    EXPECT_GT(estimate->link()->bytes_per_s, 0);
  }
}

TEST(LinkEstimate, FollowsALinkThatChanges) {
  LinkEstimate estimate;
  for (int i = 0; i < 100; ++i)
    estimate.add(size_unit * (1 + i % 2), LinkModel{0, 1e9}.time_s(size_unit * (1 + i % 2)));
  for (int i = 0; i < 100; ++i)
    estimate.add(size_unit * (1 + i % 2), LinkModel{0, 1e8}.time_s(size_unit * (1 + i % 2)));
  EXPECT_NEAR(estimate.link()->time_s(size_unit), LinkModel({0, 1e8}).time_s(size_unit),
              0.05 * LinkModel({0, 1e8}).time_s(size_unit));
}

TEST(LinkEstimate, IgnoresImpossibleMeasurements) {
  LinkEstimate estimate;
  for (int i = 0; i < 10; ++i) {
    estimate.add(0, 1);
    estimate.add(size_unit, 0);
    estimate.add(size_unit, -1);
    estimate.add(size_unit, std::numeric_limits<double>::quiet_NaN());
    estimate.add(size_unit, std::numeric_limits<double>::infinity());
  }
  EXPECT_FALSE(estimate.link());
}

}  // namespace
}  // namespace ckpt::schedule
