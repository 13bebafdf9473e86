#include "gpu_replication/replication_page.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/error.hpp"
#include "gpu_replication/receive_buffer.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::arena {
namespace {

ReplicationState word_of(std::uint64_t number) {
  ReplicationState word;
  word.id.emplace().fill(static_cast<std::byte>(number));
  word.piece_bytes = number + 3;
  word.state = {number, number + 1, number + 4, number + 2, number % 2 == 0};
  return word;
}

class ReplicationPageTest : public testing::Test {
 protected:
  static ReceiveBuffer attach(const ReceiveBuffer& receive_buffer) {
    return ReceiveBuffer::attach(UniqueFd(::fcntl(receive_buffer.fd(), F_DUPFD_CLOEXEC, 0)));
  }
  void put(std::size_t at, std::uint64_t value) {
    ASSERT_EQ(::pwrite(agents_file_.fd(), &value, sizeof(value), static_cast<off_t>(page_bytes + at)), 8);
  }

  test::TemporaryDirectory directory_{test::in_memory};
  ReceiveBuffer agents_file_ = ReceiveBuffer::create(directory_.path(), 3, {7, 1, 3});
  ReceiveBuffer trainers_file_ = attach(agents_file_);
  ReplicationPage agents_ = agents_file_.page(), trainers_ = trainers_file_.page();
};

TEST_F(ReplicationPageTest, IsEmptyBeforeTheFirstPublish) {
  EXPECT_EQ(agents_.own_state(), std::nullopt);
  EXPECT_EQ(agents_.failure(), std::nullopt);
  EXPECT_EQ(trainers_.state_of(2), std::nullopt);
  EXPECT_EQ(trainers_.taken(2), CheckpointId());
}

TEST_F(ReplicationPageTest, EachSideReadsTheOthersLastState) {
  for (const std::uint64_t number : {4u, 5u}) {
    trainers_.publish(word_of(number));
    EXPECT_EQ(agents_.own_state(), word_of(number));
    for (const std::size_t member : {0u, 2u, 31u}) agents_.put_state(member, word_of(number + member));
    for (const std::size_t member : {0u, 2u, 31u}) EXPECT_EQ(trainers_.state_of(member), word_of(number + member));
  }
  trainers_.publish({});
  EXPECT_EQ(agents_.own_state(), ReplicationState());
}

TEST_F(ReplicationPageTest, TakenCheckpointNeverDecreases) {
  agents_.taken(2, CheckpointId(7, 5));
  agents_.taken(2, CheckpointId(7, 4));
  EXPECT_EQ(trainers_.taken(2), CheckpointId(7, 5));
  EXPECT_EQ(trainers_.taken(0), CheckpointId());
}

TEST_F(ReplicationPageTest, KeepsTheFirstFailure) {
  trainers_.fail("NCCL has hung");
  trainers_.fail("and so has the rest");
  EXPECT_EQ(agents_.failure(), "NCCL has hung");
}

TEST_F(ReplicationPageTest, FailureTextIsBoundedAndPrintable) {
  trainers_.fail("a\nb\x1b" + std::string(1000, 'c'));
  const auto failure = agents_.failure();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->substr(0, 5), "a?b?c");
  EXPECT_EQ(failure->size(), sizeof(ReplicationWords::failure) - 1);
}

TEST_F(ReplicationPageTest, IgnoresAHalfWrittenStateUntilTheNextOne) {
  trainers_.publish(word_of(8));
  put(offsetof(ReplicationWords, own), 3);  // as one that died at its second word
  put(offsetof(ReplicationWords, own) + offsetof(ReplicationWords::ReplicationSlot, words) + 16, 99);
  EXPECT_EQ(agents_.own_state(), std::nullopt);
  trainers_.publish(word_of(9));
  EXPECT_EQ(agents_.own_state(), word_of(9));
  trainers_.publish(word_of(10));
  EXPECT_EQ(agents_.own_state(), word_of(10));
}

TEST_F(ReplicationPageTest, ConcurrentReaderSeesOnlyCompleteStates) {
  constexpr std::uint64_t last = 20'000;
  const std::jthread trainer([&] {
    for (std::uint64_t number = 1; number <= last; ++number) trainers_.publish(word_of(number));
  });
  std::uint64_t newest = 0;
  while (newest != last) {
    const auto word = agents_.own_state();
    if (!word) continue;
    ASSERT_EQ(*word, word_of(word->state.checkpoint));
    ASSERT_GE(word->state.checkpoint, newest);
    newest = word->state.checkpoint;
  }
}

TEST_F(ReplicationPageTest, RestartedAgentFindsTheFileWithAllPublishedStates) {
  trainers_.publish(word_of(4));
  agents_.taken(0, CheckpointId(7, 2));
  const ReceiveBuffer next = ReceiveBuffer::attach(directory_.path(), 3);
  EXPECT_EQ(next.group().incarnation, 7u);
  EXPECT_EQ(next.group().member, 1u);
  EXPECT_EQ(next.page().own_state(), word_of(4));
  EXPECT_EQ(next.page().taken(0), CheckpointId(7, 2));
  next.page().put_state(2, word_of(5));
  EXPECT_EQ(trainers_.state_of(2), word_of(5));
}

TEST_F(ReplicationPageTest, RefusesAnInvalidMember) {
  EXPECT_THROW(ReceiveBuffer::create(directory_.path(), 4, {7, 3, 3}), Failure);
  const std::uint32_t member = 3;
  ASSERT_EQ(::pwrite(agents_file_.fd(), &member, sizeof(member), offsetof(ReceiveBufferHeader, member)), 4);
  EXPECT_THROW(attach(agents_file_), Failure);
  ReceiveBuffer::remove(directory_.path(), 3);
  EXPECT_THROW(ReceiveBuffer::attach(directory_.path(), 3), Failure);
}

}  // namespace
}  // namespace ckpt::arena
