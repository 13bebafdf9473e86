#include "arena/path_board.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "arena/landing.hpp"
#include "base/error.hpp"
#include "temp_arena.hpp"

namespace ckpt::arena {
namespace {

PathWord word_of(std::uint64_t number) {
  PathWord word;
  word.id.emplace().fill(static_cast<std::byte>(number));
  word.piece_bytes = number + 3;
  word.state = {number, number + 1, number + 4, number + 2, number % 2 == 0};
  return word;
}

class PathBoardTest : public testing::Test {
 protected:
  static Landing attach(const Landing& landing) {
    return Landing::attach(UniqueFd(::fcntl(landing.fd(), F_DUPFD_CLOEXEC, 0)));
  }
  void put(std::size_t at, std::uint64_t value) {
    ASSERT_EQ(::pwrite(agents_file_.fd(), &value, sizeof(value), static_cast<off_t>(page_bytes + at)), 8);
  }

  testing_support::TempDirectory directory_;
  Landing agents_file_ = Landing::create(directory_.path(), 3, {7, 1, 3});
  Landing trainers_file_ = attach(agents_file_);
  PathBoard agents_ = agents_file_.board(), trainers_ = trainers_file_.board();
};

TEST_F(PathBoardTest, NothingIsThereBeforeAnythingWasTold) {
  EXPECT_EQ(agents_.told(), std::nullopt);
  EXPECT_EQ(agents_.failure(), std::nullopt);
  EXPECT_EQ(trainers_.heard(2), std::nullopt);
  EXPECT_EQ(trainers_.taken(2), Version());
}

TEST_F(PathBoardTest, EachSideReadsWhatTheOtherToldLast) {
  for (const std::uint64_t number : {4u, 5u}) {
    trainers_.tell(word_of(number));
    EXPECT_EQ(agents_.told(), word_of(number));
    for (const std::size_t member : {0u, 2u, 31u}) agents_.hear(member, word_of(number + member));
    for (const std::size_t member : {0u, 2u, 31u}) EXPECT_EQ(trainers_.heard(member), word_of(number + member));
  }
  trainers_.tell({});
  EXPECT_EQ(agents_.told(), PathWord());
}

TEST_F(PathBoardTest, WhatWasTakenNeverFalls) {
  agents_.taken(2, Version(7, 5));
  agents_.taken(2, Version(7, 4));
  EXPECT_EQ(trainers_.taken(2), Version(7, 5));
  EXPECT_EQ(trainers_.taken(0), Version());
}

TEST_F(PathBoardTest, TheFirstFailureIsTold) {
  trainers_.fail("NCCL has hung");
  trainers_.fail("and so has the rest");
  EXPECT_EQ(agents_.failure(), "NCCL has hung");
}

TEST_F(PathBoardTest, AFailuresSentenceIsBoundedAndPrintable) {
  trainers_.fail("a\nb\x1b" + std::string(1000, 'c'));
  const auto failure = agents_.failure();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->substr(0, 5), "a?b?c");
  EXPECT_EQ(failure->size(), sizeof(PathWords::failure) - 1);
}

TEST_F(PathBoardTest, WhatAWriterLeftHalfWrittenIsNotReadAndTheNextOneGoesOn) {
  trainers_.tell(word_of(8));
  put(offsetof(PathWords, own), 3);  // as one that died at its second word
  put(offsetof(PathWords, own) + offsetof(PathWords::Told, words) + 16, 99);
  EXPECT_EQ(agents_.told(), std::nullopt);
  trainers_.tell(word_of(9));
  EXPECT_EQ(agents_.told(), word_of(9));
  trainers_.tell(word_of(10));
  EXPECT_EQ(agents_.told(), word_of(10));
}

TEST_F(PathBoardTest, WhoeverReadsWhileItIsWrittenReadsAllOfOneWord) {
  constexpr std::uint64_t last = 20'000;
  const std::jthread trainer([&] {
    for (std::uint64_t number = 1; number <= last; ++number) trainers_.tell(word_of(number));
  });
  std::uint64_t newest = 0;
  while (newest != last) {
    const auto word = agents_.told();
    if (!word) continue;
    ASSERT_EQ(*word, word_of(word->state.version));
    ASSERT_GE(word->state.version, newest);
    newest = word->state.version;
  }
}

TEST_F(PathBoardTest, ARestartedAgentFindsTheLivingLifesFileWithAllThatWasTold) {
  trainers_.tell(word_of(4));
  agents_.taken(0, Version(7, 2));
  const Landing next = Landing::attach(directory_.path(), 3);
  EXPECT_EQ(next.group().incarnation, 7u);
  EXPECT_EQ(next.group().member, 1u);
  EXPECT_EQ(next.board().told(), word_of(4));
  EXPECT_EQ(next.board().taken(0), Version(7, 2));
  next.board().hear(2, word_of(5));
  EXPECT_EQ(trainers_.heard(2), word_of(5));
}

TEST_F(PathBoardTest, AMemberThatIsNoneIsRefused) {
  EXPECT_THROW(Landing::create(directory_.path(), 4, {7, 3, 3}), Failure);
  const std::uint32_t member = 3;
  ASSERT_EQ(::pwrite(agents_file_.fd(), &member, sizeof(member), offsetof(LandingHeader, member)), 4);
  EXPECT_THROW(attach(agents_file_), Failure);
  Landing::remove(directory_.path(), 3);
  EXPECT_THROW(Landing::attach(directory_.path(), 3), Failure);
}

}  // namespace
}  // namespace ckpt::arena
