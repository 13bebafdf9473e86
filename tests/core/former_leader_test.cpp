// From the moment a node knows of a newer leader, nothing that it says answers the former one's words: the newer one
// would take it for an answer to its own.
#include <gtest/gtest.h>

#include "lone_node.hpp"

namespace ckpt::core {
namespace {

// In whatever way it learns of the newer leader.
std::map<std::string, std::function<void(LoneNode&)>> ways() {
  Directive newer;
  newer.leader = lone_leader + 1;
  newer.epoch = 6;
  newer.sequence = 1;
  return {{"from the store", [](LoneNode& node) { node.follow(lone_leader + 1, 6); }},
          {"from itself", [=](LoneNode& node) {
             node.receive(lone_leader + 1, newer);
             node.follow(lone_leader + 1, 6);
           }}};
}

TEST(FormerLeader, DirectivesAreNotAnsweredInReportsToItsSuccessor) {
  for (const auto& [name, learn] : ways()) {
    LoneNode node{Config{}};
    node.follow(lone_leader, 5);
    Directive former;
    former.leader = lone_leader;
    former.epoch = 5;
    former.sequence = 8;
    former.roll_call = 3;
    node.receive(lone_leader, former);
    const Report before = node.newest_to<Report>(lone_leader);
    EXPECT_EQ(before.roll_call, 3u);
    learn(node);
    node.now += 1000;
    node.handle(Tick{});
    const Report after = node.newest_to<Report>(lone_leader + 1);
    EXPECT_EQ(after.epoch, 6u) << name;
    EXPECT_EQ(after.roll_call, 0u) << name;
    EXPECT_LE(after.directive, 1u) << name;
  }
}

}  // namespace
}  // namespace ckpt::core
