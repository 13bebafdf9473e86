#include "client/patience.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace ckpt::client {
namespace {

// How many waits are left out between one wait and the next, if all waits are in vain.
std::vector<int> pauses_of_vain_waits(Patience& patience, int count) {
  std::vector<int> pauses;
  for (int i = 0; i < count; ++i) {
    patience.waited(true);
    int left_out = 0;
    while (!patience.may_wait()) ++left_out;
    pauses.push_back(left_out);
  }
  return pauses;
}

TEST(Patience, WaitsAtFirst) { EXPECT_TRUE(Patience().may_wait()); }

TEST(Patience, WaitsInVainMakeLaterOnesRarerUpToALimit) {
  Patience patience;
  EXPECT_EQ(pauses_of_vain_waits(patience, 6), (std::vector<int>{1, 3, 7, 15, 15, 15}));
}

TEST(Patience, AWaitThatWasNotInVainIsFollowedByTheNext) {
  Patience patience;
  pauses_of_vain_waits(patience, 3);
  patience.waited(false);
  EXPECT_TRUE(patience.may_wait());
  EXPECT_EQ(pauses_of_vain_waits(patience, 1), std::vector<int>{1});
}

}  // namespace
}  // namespace ckpt::client
