#include "net/command_queue.hpp"

#include <gtest/gtest.h>

namespace ckpt::net {
namespace {

TEST(CommandQueue, RefusesCommandsBeyondItsBoundUntilOthersHaveRun) {
  CommandQueue queue(2);
  int ran = 0;
  queue.push([&] { ++ran; });
  queue.push([&] { ++ran; });
  EXPECT_THROW(queue.push([&] { ++ran; }), Failure);
  queue.run_all();
  EXPECT_EQ(ran, 2);
  queue.push([&] { ++ran; });
  queue.run_all();
  EXPECT_EQ(ran, 3);
}

}  // namespace
}  // namespace ckpt::net
