// Pieces of a checkpoint are found by name, however many there are, and listed in the order in which they were
// reported.
#include "core/pieces.hpp"

#include <gtest/gtest.h>

#include <string>

namespace ckpt::core {
namespace {

TEST(Pieces, AreFoundByNameInTheOrderInWhichTheyCame) {
  for (const std::size_t reserved : {0u, 10u, 5000u}) {
    std::vector<std::string> names;
    for (int i = 0; i < 5000; ++i) names.push_back("rank" + std::to_string(i * 7 % 5000) + ".private");
    Pieces pieces;
    if (reserved != 0) pieces.reserve(reserved);
    EXPECT_FALSE(pieces.contains(names[0]));
    for (NodeId i = 0; i < names.size(); ++i) pieces[names[i]].push_back({i, nullptr});
    ASSERT_EQ(pieces.end() - pieces.begin(), 5000);
    for (NodeId i = 0; i < names.size(); ++i) {
      EXPECT_EQ(pieces.begin()[i].first, names[i]);
      ASSERT_NE(pieces.find(names[i]), pieces.end());
      EXPECT_EQ(pieces.find(names[i])->second.front().node, i);
    }
    EXPECT_EQ(pieces.find("rank5000.private"), pieces.end());
    EXPECT_EQ(pieces.find(""), pieces.end());
  }
}

TEST(Pieces, HaveAllTheirHolders) {
  Pieces pieces;
  for (NodeId node = 0; node < 6; ++node) {
    pieces["model"].push_back({node, nullptr});
    const Holders& holders = pieces.find("model")->second;
    ASSERT_EQ(holders.size(), node + 1);
    EXPECT_EQ(holders.front().node, 0u);
    EXPECT_EQ(holders.back().node, node);
    for (NodeId i = 0; i <= node; ++i) EXPECT_EQ(holders[i].node, i);
    const Holders copy = holders;
    EXPECT_EQ(copy.end() - copy.begin(), node + 1);
  }
}

}  // namespace
}  // namespace ckpt::core
