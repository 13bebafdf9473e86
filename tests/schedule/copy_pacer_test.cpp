#include "schedule/copy_pacer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace ckpt::schedule {
namespace {

constexpr std::uint64_t mib = 1u << 20;
constexpr double bytes_per_s = 1000.0 * mib;

DeviceProfile profile_of(const std::vector<double>& lengths_s) {
  DeviceProfile profile;
  for (std::size_t i = 0; i < lengths_s.size(); ++i) {
    profile.spans.push_back({i % 2 == 0 ? DeviceActivity::compute : DeviceActivity::bubble, lengths_s[i]});
    profile.stretch_s += lengths_s[i];
  }
  profile.iterations = 20;
  return profile;
}

// One copy thread that follows a pacer through an iteration, in virtual time.
struct Copied {
  double ended_s = INFINITY;  // when the last byte was copied
  std::uint64_t in_bubbles = 0;
  std::uint64_t beside = 0;
  double busy_beside_s = 0;
};

// `actual`: what the device does in this iteration, as profile_of() takes it.
Copied run(CopyPacer& pacer, std::uint64_t size_bytes, const std::vector<double>& actual, double chunk_mib = 0.25) {
  Copied result;
  double now_s = 0;
  std::uint64_t left = size_bytes;
  const auto at = [&](double at_s) {
    DeviceNow now{at_s, 0, false};
    double begin_s = 0;
    for (std::size_t i = 0; i < actual.size(); begin_s += actual[i++])
      if (i % 2 == 1 && at_s >= begin_s) {
        ++now.bubbles;
        now.is_in_bubble = at_s < begin_s + actual[i];
      } else if (at_s >= begin_s) {
        now.is_in_bubble = false;
      }
    return now;
  };
  const auto next_bubble_s = [&](double after_s) {
    double begin_s = 0;
    for (std::size_t i = 0; i < actual.size(); begin_s += actual[i++])
      if (i % 2 == 1 && begin_s > after_s) return begin_s;
    return static_cast<double>(INFINITY);
  };
  for (int turns = 0; left != 0 && turns < 1'000'000; ++turns) {
    const DeviceNow now = at(now_s);
    const auto turn = pacer.turn(now, left, static_cast<std::uint64_t>(chunk_mib * mib));
    EXPECT_TRUE((turn.size_bytes == 0) != (turn.wait_s == 0)) << "it copies or waits";
    if (turn.size_bytes == 0) {
      now_s = std::min(now_s + turn.wait_s + 1e-9, next_bubble_s(now_s));
      continue;
    }
    const double time_s = static_cast<double>(turn.size_bytes) / bytes_per_s;
    (now.is_in_bubble ? result.in_bubbles : result.beside) += turn.size_bytes;
    if (!now.is_in_bubble) result.busy_beside_s += time_s;
    now_s += time_s;
    left -= turn.size_bytes;
  }
  if (left == 0) result.ended_s = now_s;
  return result;
}

TEST(CopyPacerTest, MakesNoPlanIfLittleFitsIntoBubbles) {
  CopyPacer pacer;
  const DeviceProfile profile = profile_of({1.0, 0.01, 1.0});  // 9 MiB fit
  EXPECT_TRUE(pacer.begin(profile, 80 * mib, bytes_per_s));
  EXPECT_FALSE(pacer.begin(profile, 100 * mib, bytes_per_s));
}

TEST(CopyPacerTest, MakesNoPlanWithoutAProfileABubbleOrARate) {
  CopyPacer pacer;
  EXPECT_FALSE(pacer.begin({}, mib, bytes_per_s));
  EXPECT_FALSE(pacer.begin(profile_of({1.0}), mib, bytes_per_s)) << "no bubbles";
  EXPECT_FALSE(pacer.begin(profile_of({1.0, 0.00005, 1.0}), mib, bytes_per_s)) << "a bubble that is too short";
  EXPECT_FALSE(pacer.begin(profile_of({1.0, 0.5, 1.0}), mib, 0)) << "no rate";
  EXPECT_TRUE(pacer.begin(profile_of({1.0, 0.5, 1.0}), mib, bytes_per_s));
}

TEST(CopyPacerTest, CopiesInBubblesIfTheStateFits) {
  CopyPacer pacer;
  const std::vector<double> device = {0.1, 0.05, 0.1, 0.05, 0.1};
  ASSERT_TRUE(pacer.begin(profile_of(device), 80 * mib, bytes_per_s));
  EXPECT_EQ(pacer.plan().bubble_bytes, 80 * mib);
  const Copied result = run(pacer, 80 * mib, device);
  EXPECT_EQ(result.in_bubbles, 80 * mib);
  EXPECT_EQ(result.beside, 0u);
}

TEST(CopyPacerTest, CopiesTheRestAtTheLowestSufficientRate) {
  CopyPacer pacer;
  const std::vector<double> device = {0.1, 0.05, 0.1, 0.05, 0.1};
  ASSERT_TRUE(pacer.begin(profile_of(device), 150 * mib, bytes_per_s));
  const Copied result = run(pacer, 150 * mib, device);
  EXPECT_LT(result.ended_s, 0.4);
  EXPECT_GT(result.in_bubbles, 80 * mib);
  // 50 to 70 MiB of it, in the 0.3 s of computation: the copy takes a fifth of that time at most.
  EXPECT_LT(result.busy_beside_s, 0.08);
}

TEST(CopyPacerTest, FinishesBeforeTheUpdateIfNoBubbleComes) {
  for (const std::uint64_t size_mib : {1, 10, 80, 150, 300}) {
    CopyPacer pacer;
    ASSERT_TRUE(pacer.begin(profile_of({0.1, 0.05, 0.1, 0.05, 0.1}), size_mib * mib, bytes_per_s));
    EXPECT_LT(run(pacer, size_mib * mib, {0.4}).ended_s, 0.4) << size_mib << " MiB";
  }
}

TEST(CopyPacerTest, FinishesBeforeTheUpdateIfBubblesAreShorterOrLater) {
  const auto ends_in_time = [](const std::vector<double>& actual) {
    CopyPacer pacer;
    if (!pacer.begin(profile_of({0.1, 0.05, 0.1, 0.05, 0.1}), 120 * mib, bytes_per_s)) return false;
    return run(pacer, 120 * mib, actual).ended_s < 0.4;
  };
  EXPECT_TRUE(ends_in_time({0.1, 0.01, 0.1, 0.01, 0.18}));
  EXPECT_TRUE(ends_in_time({0.3, 0.01, 0.05, 0.01, 0.03}));
  EXPECT_TRUE(ends_in_time({0.05, 0.001, 0.05, 0.2, 0.099}));
}

TEST(CopyPacerTest, CopiesWithoutPausesIfTheStateDoesNotFit) {
  CopyPacer pacer;
  ASSERT_TRUE(pacer.begin(profile_of({0.1, 0.05, 0.1}), 400 * mib, bytes_per_s));
  const Copied result = run(pacer, 400 * mib, {0.1, 0.05, 0.1});
  EXPECT_NEAR(result.ended_s, 0.4, 0.001);
  EXPECT_FALSE(pacer.has_waited());
}

TEST(CopyPacerTest, ReturnsTheNextBubbleThatIsLongEnough) {
  CopyPacer pacer;
  ASSERT_TRUE(pacer.begin(profile_of({0.1, 0.00001, 0.1, 0.05, 0.1, 0.00001, 0.1}), mib, bytes_per_s));
  EXPECT_EQ(pacer.next_long_bubble(0), 1u);
  EXPECT_EQ(pacer.next_long_bubble(1), 1u);
  EXPECT_EQ(pacer.next_long_bubble(2), UINT32_MAX);
}

}  // namespace
}  // namespace ckpt::schedule
