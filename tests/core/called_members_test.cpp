// A member that cannot read the store does not learn there who leads. The leader calls it, and it follows.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/epoch.hpp"
#include "lone_node.hpp"

namespace ckpt::core {
namespace {

constexpr NodeId newer_leader = lone_leader + 1;

Directive call_of(NodeId leader, std::uint64_t epoch) {
  Directive call;
  call.leader = leader;
  call.epoch = epoch;
  call.sequence = 1;
  return call;
}

std::size_t reports_to(const LoneNode& node, NodeId to) {
  return static_cast<std::size_t>(std::count_if(node.effects.begin(), node.effects.end(), [&](const Effect& effect) {
    const auto* send = std::get_if<Send>(&effect);
    return send != nullptr && send->to == to && std::holds_alternative<Report>(send->message);
  }));
}

TEST(ACalledMember, ReportsToTheLeaderThatCalledIt) {
  const Config config{};
  LoneNode node{config};
  node.follow(lone_leader, epoch_of(5, lone_leader));
  node.receive(newer_leader, call_of(newer_leader, epoch_of(6, newer_leader)));
  node.now += config.report_ms;
  node.handle(Tick{});
  EXPECT_EQ(node.status().leader, newer_leader);
  EXPECT_EQ(node.newest_to<Report>(newer_leader).epoch, epoch_of(6, newer_leader));
}

TEST(ACalledMember, StopsLeadingIfItLedUnawareOfTheNewerLeader) {
  const Config config{};
  LoneNode node{config};
  node.lead({}, {});
  ASSERT_TRUE(node.status().is_leader);
  node.receive(newer_leader, call_of(newer_leader, epoch_of(6, newer_leader)));
  node.now += config.report_ms;
  node.handle(Tick{});
  EXPECT_FALSE(node.status().is_leader);
  EXPECT_GE(reports_to(node, newer_leader), 1u);
}

TEST(ACalledMember, FollowsNoCallerOfAnOlderTerm) {
  const Config config{};
  LoneNode node{config};
  node.follow(lone_leader, epoch_of(5, lone_leader));
  node.receive(newer_leader, call_of(newer_leader, epoch_of(4, newer_leader)));
  node.now += config.report_ms;
  node.handle(Tick{});
  EXPECT_EQ(node.status().leader, lone_leader);
  EXPECT_EQ(reports_to(node, newer_leader), 0u);
}

// A caller that fell silent may be gone, too.
TEST(ACalledMember, FollowsTheStoreAgainOnceItsCallerIsSilentForALease) {
  const Config config{};
  LoneNode node{config};
  node.follow(lone_leader, epoch_of(5, lone_leader));
  node.receive(newer_leader, call_of(newer_leader, epoch_of(6, newer_leader)));
  node.now += config.lease_ms / 2;
  node.follow(lone_leader, epoch_of(5, lone_leader));  // reads of it change nothing
  EXPECT_EQ(node.status().leader, newer_leader);
  node.handle(IncarnationRecordRead{1, {}});
  node.now += config.lease_ms;
  node.handle(Tick{});
  EXPECT_NE(node.status().leader, newer_leader);
}

// ---- The leader ----

// Three of four members report.
class ALeaderOfAnAbsentMember : public testing::Test {
 protected:
  static constexpr NodeId absent = 3;

  void pass(TimeMs ms) {
    for (const TimeMs end = leader_.now + ms; leader_.now < end;) {
      leader_.now += config.report_ms;
      for (NodeId node = 0; node < absent; ++node) leader_.say(leader_.report_of(node));
    }
  }
  std::size_t directives_to(NodeId to) const {
    return static_cast<std::size_t>(
        std::count_if(leader_.effects.begin(), leader_.effects.end(), [&](const Effect& effect) {
          const auto* send = std::get_if<Send>(&effect);
          return send != nullptr && send->to == to && std::holds_alternative<Directive>(send->message);
        }));
  }

  const Config config{};
  LoneLeader leader_{4, placement::Protection::of_copies(2)};
};

TEST_F(ALeaderOfAnAbsentMember, CallsItSeveralTimesBeforeItCouldBeCalledLost) {
  pass(config.node_timeout_ms);
  EXPECT_GE(directives_to(absent), 2u);
  EXPECT_EQ(leader_.newest_to<Directive>(absent).leader, lone_leader);
  EXPECT_EQ(leader_.newest_to<Directive>(absent).epoch, leader_.status().epoch);
}

TEST_F(ALeaderOfAnAbsentMember, DoesNotCallAMemberThatFollowsIt) {
  leader_.say(leader_.report_of(absent));
  const std::size_t answers = directives_to(absent);
  pass(4 * config.node_timeout_ms);               // it falls silent, and does not answer what it hears
  EXPECT_LE(directives_to(absent), answers + 4);  // what changed until it was missed
}

// In a job of many nodes that all start together the calls are few at a time.
TEST(ALeader, CallsManyAbsentMembersInTurn) {
  const Config config{};
  LoneLeader leader{200, placement::Protection::of_copies(2)};
  std::set<NodeId> called;
  for (int look = 0; look < 8; ++look) {
    const std::size_t before = leader.effects.size();
    leader.now += config.node_timeout_ms / 4;
    leader.handle(Tick{});
    std::size_t calls = 0;
    for (std::size_t i = before; i < leader.effects.size(); ++i) {
      const auto* send = std::get_if<Send>(&leader.effects[i]);
      if (send == nullptr || !std::holds_alternative<Directive>(send->message)) continue;
      ++calls;
      called.insert(send->to);
    }
    EXPECT_LE(calls, 64u);
  }
  EXPECT_EQ(called.size(), 199u) << "all but itself";
}

}  // namespace
}  // namespace ckpt::core
