#include "schedule/pacer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <stdexcept>
#include <vector>

namespace ckpt::schedule {
namespace {

constexpr std::uint64_t grain = 64u << 10, largest = 1u << 20;
constexpr std::uint64_t much = 1u << 30;
constexpr LinkModel link{0.001, 1e8};
constexpr IdleForecast network_free{NetworkState::free, INFINITY}, network_busy{NetworkState::busy, 0};

IdleForecast idle_for(double idle_s) { return {NetworkState::idle, idle_s}; }

// With chunks that may take as long as they will.
PacerOptions pacer_options() { return {largest, grain, 1, 1}; }

Pacer pacer_that_knows_the_link() {
  Pacer pacer(pacer_options());
  for (std::uint64_t size : {grain, largest, 2 * grain, largest / 2, largest})
    pacer.received(size, link.time_s(size), true);
  return pacer;
}

TEST(Pacer, AllowsWholeConcurrentChunksIfTheNetworkIsFree) {
  Pacer pacer(pacer_options());
  for (std::size_t under_way = 0; under_way < 8; ++under_way)
    EXPECT_EQ(pacer.allow(1, much, under_way, network_free, 0), largest);
  EXPECT_EQ(pacer.allow(1, 1000, 0, network_free, 0), 1000u) << "the rest of a piece";
}

TEST(Pacer, AllowsNothingWhileTrainingCommunicates) {
  Pacer pacer = pacer_that_knows_the_link();
  EXPECT_EQ(pacer.allow(1, much, 0, network_busy, 0), 0u);
}

TEST(Pacer, AllowsChunksOneByOneInIdleSpans) {
  Pacer pacer = pacer_that_knows_the_link();
  EXPECT_EQ(pacer.allow(1, much, 0, idle_for(10), 0), largest);
  EXPECT_EQ(pacer.allow(1, much, 1, idle_for(10), 0), 0u);
}

TEST(Pacer, CutsAChunkToFitTheSpan) {
  Pacer pacer = pacer_that_knows_the_link();
  std::mt19937_64 random(1);
  for (int i = 0; i < 10'000; ++i) {
    const double idle_s = 1e-6 * static_cast<double>(random() % 20'000);
    const std::uint64_t left = 1 + random() % (2 * largest);
    const std::uint64_t bytes = pacer.allow(1, left, 0, idle_for(idle_s), 1e9);
    ASSERT_LE(bytes, std::min(left, largest));
    if (bytes != 0) {
      ASSERT_LE(link.time_s(bytes), idle_s * (1 + 1e-9));
    }
    if (bytes != 0 && bytes != left) {
      ASSERT_EQ(bytes % grain, 0u);
    }
    // As much as fits: one grain more would not.
    if (bytes < std::min(left, largest)) {
      ASSERT_GT(link.time_s(std::min(bytes + grain, left)), idle_s * (1 - 1e-9));
    }
  }
}

TEST(Pacer, LimitsAChunkToTheAllowedDelay) {
  Pacer pacer({largest, grain, 0.005, 1});
  for (std::uint64_t size : {grain, largest, 2 * grain, largest / 2, largest})
    pacer.received(size, link.time_s(size), true);
  const std::uint64_t brief = static_cast<std::uint64_t>(0.005 * link.bytes_per_s) / grain * grain;
  EXPECT_EQ(pacer.allow(1, much, 0, idle_for(INFINITY), 0), brief);
  EXPECT_EQ(pacer.allow(1, much, 0, network_free, 0), largest);
  Pacer slow({largest, grain, 0.0001, 1});
  for (int i = 0; i < 4; ++i) slow.received(grain, link.time_s(grain), true);
  EXPECT_EQ(slow.allow(1, much, 0, idle_for(INFINITY), 0), grain) << "there are no smaller ones";
}

TEST(Pacer, IgnoresTimeWithoutWaitingChunks) {
  Pacer pacer = pacer_that_knows_the_link();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(pacer.allow(i, much, 0, network_busy, 0), 0u);
    EXPECT_EQ(pacer.allow(i + 0.01, much, 0, idle_for(1), 0), largest);
  }
  EXPECT_EQ(pacer.forced(), 0u);
}

TEST(Pacer, StartsWithSmallChunksIfTheLinkIsUnknown) {
  Pacer pacer(pacer_options());
  EXPECT_EQ(pacer.allow(1, much, 0, idle_for(INFINITY), 0), grain);
  EXPECT_EQ(pacer.allow(1, much, 0, idle_for(0), 0), 0u);
  for (int i = 0; i < 4; ++i) pacer.received(grain, link.time_s(grain), true);
  EXPECT_EQ(pacer.allow(1, much, 0, idle_for(INFINITY), 0), largest);
}

// What waits too long leaves at a tenth of the pace that the link has.
TEST(Pacer, ForcesStarvedChunksAtATenthOfTheLink) {
  for (const double iteration_s : {0.1, 5.0}) {
    for (const IdleForecast& never : {network_busy, idle_for(0.0001)}) {
      Pacer pacer = pacer_that_knows_the_link();
      const double starvation_limit_s = std::max(1.0, 2 * iteration_s);
      std::uint64_t sent = 0;
      for (int step = 0; step < 30'000; ++step) {
        const double at_s = 0.001 * step;
        const std::uint64_t bytes = pacer.allow(at_s, much, 0, never, iteration_s);
        if (at_s < starvation_limit_s - 0.01) {
          ASSERT_EQ(bytes, 0u);
        }
        sent += bytes;
      }
      const double waited_s = 30 - starvation_limit_s;
      EXPECT_LE(static_cast<double>(sent), 0.1 * waited_s * link.bytes_per_s + largest);
      EXPECT_GE(static_cast<double>(sent), 0.08 * waited_s * link.bytes_per_s);
      EXPECT_EQ(pacer.forced(), sent / largest);
    }
  }
}

// An agent that others keep from its core for a moment comes to ask late.
TEST(Pacer, ForcesStarvedChunksThatAskIrregularly) {
  Pacer pacer = pacer_that_knows_the_link();
  std::uint64_t sent = 0;
  for (int step = 0; step < 60'000; ++step)
    if (step % 2000 >= 200) sent += pacer.allow(0.001 * step, much, 0, network_busy, 5);
  EXPECT_GT(static_cast<double>(sent), 0.07 * 50 * link.bytes_per_s);
}

TEST(Pacer, ForcedChunksTakeATenthOfTheTimeOnASlowLink) {
  for (const double slower : {1.0, 3.0, 8.0}) {
    Pacer pacer = pacer_that_knows_the_link();
    double in_the_way_s = 0, free_at_s = 0;
    for (int step = 0; step < 60'000; ++step) {
      const double at_s = 0.001 * step;
      if (at_s < free_at_s) {
        pacer.allow(at_s, much, 1, network_busy, 0);
        continue;
      }
      if (free_at_s > 0) pacer.received(largest, slower * link.time_s(largest), false);
      const std::uint64_t bytes = pacer.allow(at_s, much, 0, network_busy, 0);
      free_at_s = bytes == 0 ? 0 : at_s + slower * link.time_s(bytes);
      if (bytes != 0) in_the_way_s += slower * link.time_s(bytes);
    }
    EXPECT_NEAR(in_the_way_s / 60, 0.1, 0.01) << slower;
  }
}

TEST(Pacer, HungReceiverDelaysForcedChunksOnlyBriefly) {
  Pacer pacer = pacer_that_knows_the_link();
  double at_s = 0;
  while (pacer.allow(at_s, much, 0, network_busy, 0) == 0) at_s += 0.01;
  pacer.received(largest, 1000, false);
  const double received_s = at_s;
  while (pacer.allow(at_s, much, 0, network_busy, 0) == 0) at_s += 0.01;
  EXPECT_LT(at_s - received_s, 12);
}

TEST(Pacer, ForcesNothingIfAllChunksLeaveInTime) {
  Pacer pacer = pacer_that_knows_the_link();
  for (int iteration = 0; iteration < 200; iteration += 2) {
    for (int step = 0; step < 900; ++step)
      EXPECT_EQ(pacer.allow(iteration + 0.001 * step, grain, 0, network_busy, 1), 0u);
    EXPECT_EQ(pacer.allow(iteration + 0.9, grain, 0, idle_for(1), 1), grain);
  }
  EXPECT_EQ(pacer.forced(), 0u);
}

TEST(Pacer, CountsChunksInSpansTowardsTheForcedShare) {
  // A grain in each iteration of 5 s is not a tenth of the link: the rest of it is forced.
  Pacer pacer = pacer_that_knows_the_link();
  std::uint64_t sent = 0;
  for (int step = 0; step < 60'000; ++step)
    sent += pacer.allow(0.001 * step, much, 0, step % 5000 == 0 ? idle_for(link.time_s(grain)) : network_busy, 5);
  EXPECT_GT(static_cast<double>(sent), 0.08 * 50 * link.bytes_per_s);
  EXPECT_LT(static_cast<double>(sent), 0.1 * 50 * link.bytes_per_s + largest);
  // And where a fifth of it fits nothing is.
  Pacer other = pacer_that_knows_the_link();
  for (int step = 0; step < 60'000; ++step)
    other.allow(0.001 * step, much, 0, step % 1000 < 200 && step % 12 == 0 ? idle_for(1) : network_busy, 1);
  EXPECT_EQ(other.forced(), 0u);
}

TEST(Pacer, ForcesNothingThatHasJustBegunToWait) {
  Pacer pacer = pacer_that_knows_the_link();
  for (double at_s = 0; at_s < 10; at_s += 0.01) pacer.allow(at_s, much, 0, network_busy, 0);
  const std::uint64_t forced = pacer.forced();
  EXPECT_GT(forced, 0u);
  for (double at_s = 20; at_s < 20.9; at_s += 0.01) EXPECT_EQ(pacer.allow(at_s, much, 0, network_busy, 0), 0u);
  EXPECT_EQ(pacer.forced(), forced);
}

// The planner and the pacer are two ways to one end: an iteration just as learned carries what was planned.
TEST(Pacer, SendsAsMuchAsPlannedInALearnedIteration) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 200; ++round) {
    PlanRequest request;
    for (std::size_t i = 0; i < 1 + random() % 10; ++i)
      request.spans_s.push_back(1e-4 * static_cast<double>(random() % 500));
    request.checkpoint_bytes = grain * (1 + random() % 400);
    request.reserved_bytes = 4 * largest;
    request.buffers = 4;
    request.usable = 0.9;
    request.link = link;
    std::vector<std::uint64_t> planned(request.spans_s.size()), sent(request.spans_s.size());
    for (const PlannedChunk& each : plan(request).chunks)
      if (each.span < planned.size()) planned[each.span] += each.size_bytes;
    Pacer pacer = pacer_that_knows_the_link();
    std::uint64_t left = request.checkpoint_bytes;
    double at_s = 0;
    for (std::size_t span = 0; span < sent.size(); ++span) {
      double idle_s = request.usable * request.spans_s[span];
      while (left != 0) {
        const std::uint64_t bytes = pacer.allow(at_s, left, 0, idle_for(idle_s), 1e9);
        if (bytes == 0) break;
        sent[span] += bytes;
        left -= bytes;
        idle_s -= link.time_s(bytes);
        at_s += link.time_s(bytes);
      }
    }
    // Ours are cut at grains, and so may carry a little into the next span.
    std::uint64_t planned_so_far = 0, sent_so_far = 0;
    for (std::size_t span = 0; span < sent.size(); ++span) {
      planned_so_far += planned[span];
      sent_so_far += sent[span];
      ASSERT_LE(sent_so_far, planned_so_far + grain);
      ASSERT_LE(planned_so_far, sent_so_far + (span + 1) * grain);
    }
  }
}

TEST(Pacer, RefusesInvalidOptions) {
  EXPECT_THROW(Pacer({largest, 0}), std::invalid_argument);
  EXPECT_THROW(Pacer({grain - 1, grain}), std::invalid_argument);
  EXPECT_THROW(Pacer({largest, grain, 0, 1}), std::invalid_argument);
  EXPECT_THROW(Pacer({largest, grain, 1, 0}), std::invalid_argument);
  EXPECT_THROW(Pacer({largest, grain, 1, NAN}), std::invalid_argument);
}

}  // namespace
}  // namespace ckpt::schedule
