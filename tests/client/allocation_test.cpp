// What an iteration allocates. A program of its own, because it replaces `new` (counted_new.cpp).

#include <cstdint>

#include "c_api_fixture.hpp"

std::uint64_t allocation_count();  // of this thread; counted_new.cpp

namespace ckpt::client {
namespace {

TEST_F(CApiEngineTest, IterationsAllocateNoMemory) {
  const std::uint64_t before_first = allocation_count();
  ASSERT_EQ(ckpt_snapshot(engine_, 0, CKPT_NO_STREAM), CKPT_OK) << ckpt_last_error();
  ASSERT_EQ(ckpt_before_update(engine_, nullptr, 0), CKPT_OK);
  EXPECT_GT(allocation_count(), before_first);  // so they are counted
  for (int k = 1; k < 10; ++k) {
    agent_->grant();
    const std::uint64_t before = allocation_count();
    const ckpt_status begin = ckpt_comm_begin(engine_, 0, CKPT_NO_STREAM),
                      end = ckpt_comm_end(engine_, 0, CKPT_NO_STREAM);
    const ckpt_status snapshot = ckpt_snapshot(engine_, k, CKPT_NO_STREAM);
    const ckpt_status update = ckpt_before_update(engine_, nullptr, 0);
    EXPECT_EQ(allocation_count() - before, 0u);
    ASSERT_EQ(begin, CKPT_OK);
    ASSERT_EQ(end, CKPT_OK);
    ASSERT_EQ(snapshot, CKPT_OK);
    ASSERT_EQ(update, CKPT_OK);
  }
}

}  // namespace
}  // namespace ckpt::client
