#include "gpu_replication/receive_buffer.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "arena/arena_format.hpp"
#include "base/error.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::arena {
namespace {

UniqueFd duplicate(const ReceiveBuffer& receive_buffer) {
  return UniqueFd(::fcntl(receive_buffer.fd(), F_DUPFD_CLOEXEC, 0));
}

class ReceiveBufferTest : public testing::Test {
 protected:
  test::TemporaryDirectory directory_{test::in_memory};
  ReceiveBufferTest() { agents_.make_places({100'000, 0, 5000}); }
  static ReceiveBuffer attach(const ReceiveBuffer& receive_buffer) {
    ReceiveBuffer trainers = ReceiveBuffer::attach(duplicate(receive_buffer));
    EXPECT_TRUE(trainers.find_places());
    return trainers;
  }
  ReceiveBuffer agents_ = ReceiveBuffer::create(directory_.path(), 3, {7, 1, 3});
};

TEST_F(ReceiveBufferTest, AgentReadsWhatTheTrainerWrites) {
  ReceiveBuffer trainers = attach(agents_);
  ASSERT_EQ(trainers.group().members, 3u);
  const CheckpointId checkpoint(2, 9);
  for (const std::size_t place : {0u, 2u}) {
    ASSERT_EQ(trainers.bytes(place).size(), agents_.bytes(place).size());
    trainers.begin(place, checkpoint);
    std::fill(trainers.bytes(place).begin(), trainers.bytes(place).end(), static_cast<std::byte>(place + 1));
    trainers.received(place, 4000);
    EXPECT_EQ(agents_.received(place, checkpoint), 4000u);
  }
  EXPECT_EQ(agents_.bytes(0).back(), std::byte{1});
  EXPECT_EQ(agents_.bytes(2).front(), std::byte{3});
  EXPECT_TRUE(agents_.bytes(1).empty());
}

TEST_F(ReceiveBufferTest, ReportsNoBytesForAnotherCheckpoint) {
  EXPECT_EQ(agents_.received(0, CheckpointId(1, 1)), 0u);
  agents_.begin(0, CheckpointId(1, 1));
  agents_.received(0, 77);
  EXPECT_EQ(agents_.received(0, CheckpointId(1, 2)), 0u);
  agents_.begin(0, CheckpointId(1, 2));
  EXPECT_EQ(agents_.received(0, CheckpointId(1, 2)), 0u);
}

TEST_F(ReceiveBufferTest, LimitsReceivedBytesToThePlacesSize) {
  ReceiveBuffer trainers = attach(agents_);
  trainers.begin(2, CheckpointId(1, 1));
  trainers.received(2, UINT64_MAX);
  EXPECT_EQ(agents_.received(2, CheckpointId(1, 1)), 5000u);
}

TEST_F(ReceiveBufferTest, NewBufferLeavesOldMappingsValid) {
  ReceiveBuffer trainers = attach(agents_);
  const ReceiveBuffer next = ReceiveBuffer::create(directory_.path(), 3, {8, 1, 3});
  trainers.begin(0, CheckpointId(1, 1));
  trainers.received(0, 10);
  EXPECT_EQ(next.received(0, CheckpointId(1, 1)), 0u);
}

TEST_F(ReceiveBufferTest, HoldersOfTheFileFindPlacesMadeLater) {
  ReceiveBuffer agents = ReceiveBuffer::create(directory_.path(), 4, {7, 0, 2});
  ReceiveBuffer trainers = ReceiveBuffer::attach(duplicate(agents));
  EXPECT_FALSE(trainers.find_places());
  EXPECT_TRUE(trainers.bytes(1).empty());
  agents.make_places({0, 12'345});
  EXPECT_TRUE(trainers.find_places());
  EXPECT_EQ(trainers.bytes(1).size(), 12'345u);
  trainers.bytes(1).back() = std::byte{9};
  ReceiveBuffer next = ReceiveBuffer::attach(directory_.path(), 4);
  EXPECT_TRUE(next.find_places());
  EXPECT_EQ(next.bytes(1).back(), std::byte{9});
  EXPECT_EQ(next.size_bytes(), ReceiveBuffer::file_bytes(std::vector<std::uint64_t>{0, 12'345}));
}

TEST_F(ReceiveBufferTest, AMalformedFileIsRefused) {
  const auto is_refused = [&](std::size_t at, std::uint64_t value) {
    std::uint64_t before = 0;
    EXPECT_EQ(::pread(agents_.fd(), &before, sizeof(before), static_cast<off_t>(at)), 8);
    EXPECT_EQ(::pwrite(agents_.fd(), &value, sizeof(value), static_cast<off_t>(at)), 8);
    bool refused = false;
    try {
      ReceiveBuffer::attach(duplicate(agents_)).find_places();
    } catch (const Failure& failure) {
      refused = failure.status() == CKPT_ERR_CORRUPT;
    }
    EXPECT_EQ(::pwrite(agents_.fd(), &before, sizeof(before), static_cast<off_t>(at)), 8);
    return refused;
  };
  const std::size_t capacities = offsetof(ReceiveBufferHeader, capacity_bytes);
  EXPECT_TRUE(is_refused(0, 1));
  EXPECT_TRUE(is_refused(offsetof(ReceiveBufferHeader, format), format_version));  // no member
  EXPECT_TRUE(
      is_refused(offsetof(ReceiveBufferHeader, format), (std::uint64_t{33} << 32) | format_version));  // too many
  EXPECT_TRUE(is_refused(offsetof(ReceiveBufferHeader, format), (std::uint64_t{3} << 32) | 99));
  EXPECT_TRUE(is_refused(offsetof(ReceiveBufferHeader, member), 3));  // none of them
  for (const std::uint64_t capacity_bytes : {std::uint64_t{200'000}, std::uint64_t{1} << 40, UINT64_MAX})
    EXPECT_TRUE(is_refused(capacities, capacity_bytes)) << capacity_bytes;
  EXPECT_FALSE(is_refused(0, receive_buffer_magic));
  ASSERT_EQ(::ftruncate(agents_.fd(), 100), 0);
  EXPECT_THROW(ReceiveBuffer::attach(duplicate(agents_)), Failure);
}

TEST_F(ReceiveBufferTest, FailedCreateLeavesNoFile) {
  std::filesystem::create_directories(directory_.path() + "/rank-4.receive_buffer/in-the-way");
  EXPECT_THROW(ReceiveBuffer::create(directory_.path(), 4, {1, 0, 2}), Failure);
  EXPECT_FALSE(std::filesystem::exists(directory_.path() + "/rank-4.receive_buffer.new"));
}

TEST_F(ReceiveBufferTest, RefusesPlacesThatDoNotFitAndLeavesNothing) {
  ReceiveBuffer receive_buffer = ReceiveBuffer::create(directory_.path(), 4, {1, 0, 2});
  EXPECT_THROW(receive_buffer.make_places({0, std::uint64_t{1} << 50}), Failure);
  EXPECT_FALSE(receive_buffer.find_places());
  EXPECT_LT(std::filesystem::file_size(directory_ / "rank-4.receive_buffer"), 100'000u);
  EXPECT_THROW(receive_buffer.make_places({0}), Failure);
  EXPECT_THROW(ReceiveBuffer::create(directory_.path(), 5, {1, 0, 33}), Failure);
  EXPECT_THROW(ReceiveBuffer::create(directory_.path(), 5, {1, 2, 2}), Failure);
  EXPECT_FALSE(std::filesystem::exists(directory_ / "rank-5.receive_buffer.new"));
}

}  // namespace
}  // namespace ckpt::arena
