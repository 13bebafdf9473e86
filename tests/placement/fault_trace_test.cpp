#include "placement/odds/fault_trace.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "tests/placement/support.hpp"

namespace ckpt::placement::fault_trace {
namespace {

constexpr double until_end = std::numeric_limits<double>::infinity();

std::string event(const std::string& node, double days, const std::string& type) {
  return R"({"node_id": ")" + node + R"(", "event_time": )" + std::to_string(days) + R"(, "event_type": "fault_)" +
         type + R"(", "fault_type": {"Level": "Hardware Failure", "Class": "GPU", "Desc": "GPU xid Error"}})";
}

std::string list(const std::vector<std::string>& events) {
  std::string text = "[";
  for (const auto& each : events) text += (text.size() > 1 ? ",\n" : "") + each;
  return text + "]";
}

// a and b fail together, c an hour after b is back, a again while c is down.
std::string small_trace() {
  return list({event("a", 1.0, "start"), event("b", 1.0, "start"), event("b", 1.25, "end"), event("a", 1.5, "end"),
               event("c", 2.0, "start"), event("a", 2.5, "start"), event("c", 3.0, "end"), event("a", 4.0, "end")});
}

TEST(FaultTrace, IsParsedIntoFaultsWithTheirEnds) {
  const FaultTrace trace = parse_trace(small_trace());
  EXPECT_EQ(trace.nodes, 3u);
  EXPECT_EQ(trace.span_days, 4.0);
  ASSERT_EQ(trace.faults.size(), 4u);
  EXPECT_EQ(trace.faults[0].node, trace.faults[3].node);
  EXPECT_EQ(trace.faults[0].end_days, 1.5);
  EXPECT_EQ(trace.faults[1].end_days, 1.25);
  EXPECT_EQ(trace.faults[3].start_days, 2.5);
}

TEST(FaultTrace, MayHaveOpenAndOverlappingFaultsOnANode) {
  const FaultTrace trace =
      parse_trace(list({event("a", 0, "start"), event("a", 1, "start"), event("a", 2, "end"), event("b", 3, "start")}));
  EXPECT_EQ(trace.faults[0].end_days, 2);
  EXPECT_TRUE(std::isinf(trace.faults[1].end_days));
  EXPECT_TRUE(std::isinf(trace.faults[2].end_days));
}

TEST(FaultTrace, ReplayChecksAtEveryFaultWhetherMemorySuffices) {
  const FaultTrace trace = parse_trace(small_trace());
  const Placement pairs = place({.strategy = Strategy::group, .nodes = 4, .copies = 2});
  struct Expected {
    std::vector<std::uint32_t> numbering;  // of a, b, c
    double repair_days;
    std::uint64_t survived;
    std::uint32_t most_lost;
  };
  const Expected table[] = {
      {{0, 2, 1}, 0, 3, 2},          // a with b: different pairs; c and a: never at one moment
      {{0, 1, 2}, 0, 2, 2},          // a and b are a pair and fail together
      {{0, 2, 1}, until_end, 2, 2},  // c and a are a pair, and c is still down
      {{0, 2, 1}, 0.5, 3, 2},        // c's pieces are held again just when a fails
      {{0, 2, 1}, 0.6, 2, 2},        // and here a little later
      {{0, 2, 1}, 1.1, 1, 3},        // b is not back when c fails, nor c when a does
  };
  for (const auto& [numbering, repair_days, survived, most_lost] : table) {
    const Replay result = replay(trace, pairs, numbering, repair_days);
    EXPECT_EQ(result.moments, 3u);
    EXPECT_EQ(result.survived, survived) << testing::PrintToString(numbering) << ", " << repair_days << " days";
    EXPECT_EQ(result.most_lost, most_lost) << repair_days << " days";
  }
}

// 40 nodes in bursts of a few at one time, 1 or 2 days apart.
FaultTrace bursty_trace() {
  std::vector<std::string> events;
  for (std::uint32_t burst = 0; burst < 40; ++burst) {
    const double start_days = 2.0 * burst + (burst % 3) * 0.3;
    for (std::uint32_t i = 0; i < 4; ++i) {
      events.push_back(event("node" + std::to_string((burst * 4 + i) % 40), start_days, "start"));
    }
    for (std::uint32_t i = 0; i < 4; ++i) {
      events.push_back(event("node" + std::to_string((burst * 4 + i) % 40), start_days + 0.1, "end"));
    }
  }
  return parse_trace(list(events));
}

std::uint64_t lost_moments(const FaultTrace& trace, const Placement& placement,
                           const std::vector<std::uint32_t>& numbering) {
  const Replay result = replay(trace, placement, numbering, until_end);
  return result.moments - result.survived;
}

TEST(FaultTrace, WithBurstsLosesMoreThanItsIndependentTwin) {
  const FaultTrace trace = bursty_trace();
  EXPECT_GT(burstiness(trace).daily_dispersion, 1.9);
  EXPECT_EQ(burstiness(trace).shared_moments, 40u);
  const Placement pairs = place({.strategy = Strategy::group, .nodes = 40, .copies = 2});
  std::uint64_t lost = 0;
  std::uint64_t lost_by_twin = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const FaultTrace twin = independent_twin(trace, seed);
    EXPECT_EQ(twin.faults.size(), trace.faults.size());
    EXPECT_LT(burstiness(twin).daily_dispersion, 1.6);
    const auto numbering = random_numbering(trace, 40, seed);
    lost += lost_moments(trace, pairs, numbering);
    lost_by_twin += lost_moments(twin, pairs, numbering);
  }
  EXPECT_GT(lost, 2 * lost_by_twin);
}

TEST(FaultTrace, WithRackBurstsLosesLessIfPlacementKnowsDomains) {
  const FaultTrace trace = bursty_trace();
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const SyntheticRacks racks = synthetic_racks(trace, 48, 4, seed);
    const Placement unaware = place({.strategy = Strategy::group, .nodes = 48, .copies = 2});
    const Placement aware = place({.strategy = Strategy::group, .nodes = 48, .copies = 2, .domains = &racks.domains});
    EXPECT_GT(lost_moments(trace, unaware, racks.numbering), 5 * lost_moments(trace, aware, racks.numbering));
  }
}

TEST(FaultTrace, NumbersNodesDistinctlyBySeed) {
  const FaultTrace trace = bursty_trace();
  const auto numbering = random_numbering(trace, 50, 3);
  EXPECT_EQ(numbering, random_numbering(trace, 50, 3));
  EXPECT_NE(numbering, random_numbering(trace, 50, 4));
  EXPECT_EQ(std::set(numbering.begin(), numbering.end()).size(), 40u);
  EXPECT_LT(*std::max_element(numbering.begin(), numbering.end()), 50u);
  EXPECT_EQ(synthetic_racks(trace, 50, 4, 3).numbering, synthetic_racks(trace, 50, 4, 3).numbering);
}

std::string refusal(const std::string& text) {
  try {
    parse_trace(text);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(FaultTrace, IsRefusedInOneSentenceIfMalformed) {
  EXPECT_EQ(refusal("[{"), "the fault trace is not JSON: give an array of events");
  EXPECT_EQ(refusal("{}"), "the fault trace must be a JSON array of events");
  EXPECT_EQ(refusal("[7]"), "event 0 of the fault trace is not a JSON object: 7");
  EXPECT_EQ(refusal(R"([{"node_id": "a", "event_type": "fault_start"}])"),
            "event 0 of the fault trace has no event_time: add it");
  EXPECT_EQ(refusal(R"([{"node_id": 7, "event_type": "fault_start", "event_time": 1}])"),
            "event 0 of the fault trace has a node_id of the wrong type: 7");
  EXPECT_EQ(refusal(list({event("a", 1, "begin")})),
            "event 0 of the fault trace has the event_type 'fault_begin': it must be fault_start or fault_end");
  EXPECT_EQ(refusal(list({event("a", 2, "start"), event("b", 1, "start")})),
            "event 1 of the fault trace is at 1.000000 days, earlier than the event before it: sort the events by "
            "event_time");
  EXPECT_EQ(refusal(list({event("a", 2, "end")})),
            "event 0 of the fault trace ends a fault of node a, but no fault of that node is open: add its fault_start "
            "event, or remove this event");
}

TEST(FaultTrace, IsRefusedIfItHasMoreNodesThanThePlacement) {
  try {
    random_numbering(bursty_trace(), 16, 1);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(
        error.what(),
        "the fault trace names 40 nodes, but the placement has only 16: ask for as many nodes as the trace names");
  }
}

}  // namespace
}  // namespace ckpt::placement::fault_trace
