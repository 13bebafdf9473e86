#include "schedule/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <stdexcept>

namespace ckpt::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Throws;

PlanRequest small() {
  PlanRequest request;
  request.spans_s = {1.0, 0.5};
  request.checkpoint_bytes = 100;
  request.reserved_bytes = 40;
  request.buffers = 2;
  request.usable = 0.5;
  request.link = {0.05, 1000};
  return request;
}

TEST(Plan, FillsEachSpanUpToItsUsableShare) {
  // A chunk of 20 bytes takes 0.07 s: seven would fit into the first half second, and five are all there is.
  const Plan fits = plan(small());
  EXPECT_THAT(fits.chunks,
              ElementsAre(PlannedChunk{0, 0, 0, 20}, PlannedChunk{0, 0, 20, 20}, PlannedChunk{0, 0, 40, 20},
                          PlannedChunk{0, 0, 60, 20}, PlannedChunk{0, 0, 80, 20}));
  EXPECT_EQ(fits.overrun_s, 0);
  EXPECT_EQ(fits.every, 1u);

  auto tight = small();
  tight.spans_s = {0.2, 0.1, 10};
  // 0.1 s: one of 0.07 s, and nothing in 0.03 s, which is less than the start-up time; 0.05 s: no byte.
  const Plan moved = plan(tight);
  EXPECT_EQ(moved.chunks.front(), (PlannedChunk{0, 0, 0, 20}));
  EXPECT_EQ(moved.chunks[1].span, 2u);
}

TEST(Plan, FillsTheRestOfASpanWithASmallerChunk) {
  auto request = small();
  request.spans_s = {0.26, 10};  // usable 0.13: one of 0.07, and (0.06 - 0.05) * 1000 = 10 bytes
  const Plan filled = plan(request);
  EXPECT_EQ(filled.chunks[0].size_bytes, 20u);
  EXPECT_NEAR(static_cast<double>(filled.chunks[1].size_bytes), 10, 1);
  EXPECT_EQ(filled.chunks[1].span, 0u);
}

TEST(Plan, MakesOnlyTheLastChunkSmallerThanTheMinimum) {
  auto request = small();
  request.spans_s = {0.26, 10};
  request.least_bytes = 15;
  const Plan filled = plan(request);
  EXPECT_EQ(filled.chunks[1].span, 1u);  // of the first span 10 bytes' time is left
  request.checkpoint_bytes = 45;
  EXPECT_EQ(plan(request).chunks.back().size_bytes, 5u);
  request.least_bytes = 21;
  EXPECT_THAT([&] { plan(request); }, Throws<std::invalid_argument>());
}

TEST(Plan, SendsEveryCopyButTheLocalOne) {
  auto request = small();
  request.spans_s = {100};
  for (const std::uint32_t copies : {1u, 2u, 4u}) {
    request.copies = copies;
    EXPECT_EQ(plan(request).chunks.size(), 5u * (copies - 1));
  }
}

TEST(Plan, ReportsTheOverrunAndACadenceThatFits) {
  auto request = small();
  request.spans_s = {0.14};  // one chunk of five
  const Plan over = plan(request);
  EXPECT_EQ(over.chunks.back().span, 1u);
  EXPECT_NEAR(over.overrun_s, 4 * 0.07, 1e-9);
  EXPECT_NEAR(over.sent_s, 5 * 0.07, 1e-9);
  EXPECT_EQ(over.every, 5u);
}

TEST(Plan, NoCadenceHelpsIfNothingFits) {
  auto request = small();
  for (const std::vector<double>& spans : {std::vector<double>{}, {0.0}, {0.01, 0.09}}) {
    request.spans_s = spans;
    const Plan none = plan(request);
    EXPECT_EQ(none.every, 0u);
    EXPECT_NEAR(none.overrun_s, 5 * 0.07, 1e-9);
  }
}

TEST(Plan, EmptyCheckpointNeedsNoChunks) {
  auto request = small();
  request.checkpoint_bytes = 0;
  EXPECT_THAT(plan(request).chunks, IsEmpty());
  EXPECT_EQ(plan(request).every, 1u);
}

// What it promises for any request.
void expect_sound(const PlanRequest& request) {
  const Plan made = plan(request);
  std::map<std::uint32_t, double> used_s;
  std::uint32_t copy = 0, span = 0;
  std::uint64_t at = 0;
  for (const PlannedChunk& chunk : made.chunks) {
    ASSERT_EQ(chunk.copy, copy);
    ASSERT_EQ(chunk.first_byte, at);
    ASSERT_GE(chunk.span, span);
    ASSERT_GT(chunk.size_bytes, 0u);
    ASSERT_LE(chunk.size_bytes, request.reserved_bytes / request.buffers);
    span = chunk.span;
    used_s[span] += request.link.time_s(chunk.size_bytes);
    at += chunk.size_bytes;
    ASSERT_LE(at, request.checkpoint_bytes);
    if (at == request.checkpoint_bytes) {
      at = 0;
      ++copy;
    }
  }
  EXPECT_EQ(copy, request.checkpoint_bytes == 0 ? 0 : request.copies - 1) << "every byte of every copy, once";
  EXPECT_EQ(at, 0u);
  for (const auto& [index, time_s] : used_s) {
    if (index == request.spans_s.size()) {
      EXPECT_NEAR(time_s, made.overrun_s, 1e-6 * (1 + time_s));
    } else {
      EXPECT_LE(time_s, request.usable * request.spans_s[index] * (1 + 1e-9)) << "span " << index << " is overfull";
    }
  }
  EXPECT_EQ(made.overrun_s > 0, used_s.contains(static_cast<std::uint32_t>(request.spans_s.size())));
  if (made.overrun_s == 0) {
    EXPECT_EQ(made.every, 1u);
  } else if (made.every != 0) {
    EXPECT_GT(made.every, 1u);
    PlanRequest rarer = request;
    rarer.spans_s.clear();
    for (std::uint32_t i = 0; i < made.every; ++i)
      rarer.spans_s.insert(rarer.spans_s.end(), request.spans_s.begin(), request.spans_s.end());
    EXPECT_EQ(plan(rarer).overrun_s, 0) << "so rarely it fits";
    for (std::size_t i = 0; i < request.spans_s.size(); ++i) rarer.spans_s.pop_back();
    EXPECT_GT(plan(rarer).overrun_s, 0) << "and no more often";
  }
}

TEST(Plan, IsConsistentForAnySpansAndSizes) {
  std::mt19937_64 random(7);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  for (int round = 0; round < 5000; ++round) {
    PlanRequest request;
    for (std::uint64_t i = below(12); i > 0; --i) {
      const double scale = std::pow(10.0, static_cast<double>(below(7)) - 5);
      request.spans_s.push_back(below(8) == 0 ? 0 : scale * static_cast<double>(below(1000)) / 100);
    }
    request.checkpoint_bytes = below(4) == 0 ? below(10) : below(1u << 22);
    request.copies = 1 + static_cast<std::uint32_t>(below(4));
    request.buffers = 1 + static_cast<std::uint32_t>(below(5));
    request.reserved_bytes = request.buffers * (1000 + below(1u << 18)) + below(request.buffers);
    request.usable = 0.05 + 0.9 * static_cast<double>(below(1000)) / 1000;
    request.link = {std::pow(10.0, -static_cast<double>(below(6))) * static_cast<double>(below(3)),
                    1000.0 * static_cast<double>(1 + below(1u << 20))};
    ASSERT_NO_FATAL_FAILURE(expect_sound(request)) << round;
  }
}

TEST(Plan, RefusesInvalidRequestsAndNamesTheCause) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  const auto refused = [](auto change) {
    auto request = small();
    change(request);
    try {
      plan(request);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refused([](auto& r) { r.buffers = 0; }), HasSubstr("sub-buffer"));
  EXPECT_THAT(refused([](auto& r) { r.reserved_bytes = 1; }), HasSubstr("1 reserved bytes"));
  EXPECT_THAT(refused([](auto& r) { r.copies = 0; }), HasSubstr("copies is 0"));
  for (const double value : {0.0, 1.0, -0.5, 2.0, nan})
    EXPECT_THAT(refused([&](auto& r) { r.usable = value; }), HasSubstr("usable")) << value;
  for (const double value : {0.0, -1.0, nan, infinity})
    EXPECT_THAT(refused([&](auto& r) { r.link.bytes_per_s = value; }), HasSubstr("bandwidth")) << value;
  for (const double value : {-1.0, nan, infinity}) {
    EXPECT_THAT(refused([&](auto& r) { r.link.startup_s = value; }), HasSubstr("start-up")) << value;
    EXPECT_THAT(refused([&](auto& r) { r.spans_s[1] = value; }), HasSubstr("idle span 1")) << value;
  }
}

}  // namespace
}  // namespace ckpt::schedule
