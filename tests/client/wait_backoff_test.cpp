#include "client/wait_backoff.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace ckpt::client {
namespace {

// How many waits are left out between one wait and the next, if all waits are in vain.
std::vector<int> pauses_of_vain_waits(WaitBackoff& backoff, int count) {
  std::vector<int> pauses;
  for (int i = 0; i < count; ++i) {
    backoff.waited(true);
    int left_out = 0;
    while (!backoff.may_wait()) ++left_out;
    pauses.push_back(left_out);
  }
  return pauses;
}

TEST(WaitBackoff, WaitsAtFirst) { EXPECT_TRUE(WaitBackoff().may_wait()); }

TEST(WaitBackoff, WaitsInVainMakeLaterOnesRarerUpToALimit) {
  WaitBackoff backoff;
  EXPECT_EQ(pauses_of_vain_waits(backoff, 6), (std::vector<int>{1, 3, 7, 15, 15, 15}));
}

TEST(WaitBackoff, AWaitThatWasNotInVainIsFollowedByTheNext) {
  WaitBackoff backoff;
  pauses_of_vain_waits(backoff, 3);
  backoff.waited(false);
  EXPECT_TRUE(backoff.may_wait());
  EXPECT_EQ(pauses_of_vain_waits(backoff, 1), std::vector<int>{1});
}

}  // namespace
}  // namespace ckpt::client
