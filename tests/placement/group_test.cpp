#include "placement/group.hpp"

#include <gtest/gtest.h>

#include <set>

namespace ckpt::placement {
namespace {

TEST(GroupPlacement, PairsNeighboursWhenTwoCopiesDivideTheNodes) {
  EXPECT_EQ(group_holders(0, 4, 2), (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(group_holders(1, 4, 2), (std::vector<std::uint32_t>{1, 0}));
  EXPECT_EQ(group_holders(2, 4, 2), (std::vector<std::uint32_t>{2, 3}));
  EXPECT_EQ(group_holders(3, 4, 2), (std::vector<std::uint32_t>{3, 2}));
}

TEST(GroupPlacement, LastGroupTakesTheRemainder) {
  EXPECT_EQ(group_holders(2, 5, 2), (std::vector<std::uint32_t>{2, 3}));
  EXPECT_EQ(group_holders(3, 5, 2), (std::vector<std::uint32_t>{3, 4}));
  EXPECT_EQ(group_holders(4, 5, 2), (std::vector<std::uint32_t>{4, 2}));
}

TEST(GroupPlacement, EveryNodeHasDistinctHoldersItselfFirstAndStoresAsMuchAsItGives) {
  for (std::uint32_t nodes = 1; nodes <= 17; ++nodes) {
    for (std::uint32_t copies = 1; copies <= 5; ++copies) {
      std::vector<std::uint32_t> stored(nodes, 0);
      for (std::uint32_t node = 0; node < nodes; ++node) {
        const auto holders = group_holders(node, nodes, copies);
        ASSERT_EQ(holders.size(), std::min(nodes, copies));
        EXPECT_EQ(holders.front(), node);
        EXPECT_EQ(std::set(holders.begin(), holders.end()).size(), holders.size());
        for (const auto holder : holders) {
          ASSERT_LT(holder, nodes);
          ++stored[holder];
        }
      }
      for (const auto count : stored) EXPECT_EQ(count, std::min(nodes, copies)) << nodes << " nodes, " << copies;
    }
  }
}

}  // namespace
}  // namespace ckpt::placement
