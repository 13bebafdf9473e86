// A thread that may hang: waited for until a deadline, then left alone.
#include "base/leavable_thread.hpp"

#include <gtest/gtest.h>

#include <semaphore>

namespace ckpt {
namespace {

constexpr std::int64_t late_ms = 50'000;

TEST(LeavableThread, JoinDestroysWhatItsBodyOwns) {
  const auto owned = std::make_shared<int>(0);
  LeavableThread thread("ckpt-test", [owned] { ++*owned; });
  EXPECT_TRUE(thread.join(Deadline::in_ms(late_ms)));
  EXPECT_EQ(*owned, 1);
  EXPECT_EQ(owned.use_count(), 1);
  EXPECT_TRUE(thread.join(Deadline::in_ms(0)));  // and again
}

TEST(LeavableThread, JoinLeavesAHangingThreadAfterTheDeadline) {
  struct Shared {
    std::binary_semaphore may_end{0}, has_ended{0};
  };
  const auto shared = std::make_shared<Shared>();
  {
    LeavableThread thread("ckpt-test", [shared] {
      shared->may_end.acquire();
      shared->has_ended.release();
    });
    EXPECT_FALSE(thread.join(Deadline::in_ms(1)));
  }
  shared->may_end.release();
  EXPECT_TRUE(shared->has_ended.try_acquire_for(std::chrono::milliseconds(late_ms)));
}

}  // namespace
}  // namespace ckpt
