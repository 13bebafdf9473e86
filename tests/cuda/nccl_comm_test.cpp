// The communicator of the GPU replication: nothing of it waits for another rank, and whatever hangs, it can be ended.
#include "gpu_replication/nccl_comm.hpp"

#include <gmock/gmock.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/error.hpp"
#include "device/cuda_handles.hpp"
#include "nccl.hpp"

namespace ckpt::device {
namespace {

using namespace testing_support;
using ::testing::HasSubstr;
using Kind = NcclComm::Transfer::Kind;

bool becomes_ready(const NcclComm& comm) {
  return eventually([&] { return comm.ready(); });
}

// What ready() throws.
std::string failure_of(const NcclComm& comm) {
  std::string words;
  EXPECT_TRUE(eventually([&] {
    try {
      comm.ready();
      return false;
    } catch (const Failure& failure) {
      words = failure.what();
      return true;
    }
  }));
  return words;
}

class NcclCommTest : public NcclTest {
 protected:
  void SetUp() override {
    NcclTest::SetUp();
    if (!has_nccl_buttons()) GTEST_SKIP() << "needs two GPUs, and an NCCL that fails on command";
    communicators_before_ = nccl_buttons().communicators();
  }
  void TearDown() override {
    reset_nccl();
    comms_ = {};
    if (has_nccl_buttons()) {
      EXPECT_EQ(nccl_buttons().communicators(), communicators_before_);
    }
    streams_ = {};
    memory_ = {};
    NcclTest::TearDown();
  }
  void make_pair() {
    const nccl::UniqueId id = NcclComm::new_id();
    for (int rank = 0; rank < 2; ++rank) {
      comms_[rank] = std::make_unique<NcclComm>(id, 2, rank);
      streams_[rank] = std::make_unique<GpuStream>();
      memory_[rank] = std::make_unique<GpuBytes>(bytes_of(size_bytes, rank + 1));
      received_[rank] = std::make_unique<GpuBytes>(size_bytes);
    }
    for (const auto& comm : comms_) ASSERT_TRUE(becomes_ready(*comm));
    exchange(0);  // connects them
    exchange(1);
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(becomes_ready(*comms_[rank]));
      ASSERT_TRUE(becomes_idle(rank));
    }
  }
  // The rank's half of an exchange of all.
  void exchange(int rank) {
    const NcclComm::Transfer transfers[] = {
        {Kind::send, 1 - rank, memory_[rank]->pointer(), size_bytes},
        {Kind::receive, 1 - rank, received_[rank]->pointer(), size_bytes},
    };
    comms_[rank]->exchange(transfers, *streams_[rank]);
  }
  bool is_idle(int rank) const { return cuStreamQuery(*streams_[rank]) == CUDA_SUCCESS; }
  bool becomes_idle(int rank) const {
    return eventually([&] { return is_idle(rank); });
  }

  static constexpr std::size_t size_bytes = (1 << 20) + 3;
  std::uint64_t communicators_before_ = 0;
  std::array<std::unique_ptr<GpuBytes>, 2> memory_, received_;
  std::array<std::unique_ptr<GpuStream>, 2> streams_;
  std::array<std::unique_ptr<NcclComm>, 2> comms_;
};

// In a process of its own: a library stays loaded.
TEST(NcclLibraryDeathTest, RefusesATooOldLibraryInOneSentence) {
  if (nccl_buttons().version == nullptr) GTEST_SKIP();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto refused = [] {
    nccl_buttons().version(21905);
    try {
      nccl_library();
    } catch (const Failure& failure) {
      std::fprintf(stderr, "%s", failure.what());
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(refused(), testing::ExitedWithCode(0), "cannot go from GPU to GPU: NCCL 2.19 is too old; install 2.20");
}

TEST_F(NcclCommTest, TransfersBytesBothWays) {
  make_pair();
  exchange(0);
  exchange(1);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(becomes_ready(*comms_[rank]));
    ASSERT_TRUE(becomes_idle(rank));
    EXPECT_EQ(received_[rank]->read(), bytes_of(size_bytes, 2 - rank));
  }
}

TEST_F(NcclCommTest, UsesOneBlockOfTheGpu) {
  make_pair();
  EXPECT_EQ(nccl_buttons().max_ctas(), 1);
}

TEST_F(NcclCommTest, NamesTheMemoryThatTransfersUse) {
  make_pair();
  const auto registered_before = nccl_buttons().registered_bytes();
  comms_[0]->use_memory(memory_[0]->pointer(), size_bytes);
  EXPECT_EQ(nccl_buttons().registered_bytes(), registered_before + size_bytes);
}

TEST_F(NcclCommTest, TransfersBytesFromMemoryThatNcclRefusesToRegister) {
  make_pair();
  comms_[0]->use_memory(0, size_bytes);
  exchange(0);
  exchange(1);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(becomes_ready(*comms_[rank]));
    ASSERT_TRUE(becomes_idle(rank));
    EXPECT_EQ(received_[rank]->read(), bytes_of(size_bytes, 2 - rank));
  }
}

TEST_F(NcclCommTest, IsNotReadyUntilAllRanksJoined) {
  const nccl::UniqueId id = NcclComm::new_id();
  comms_[1] = std::make_unique<NcclComm>(id, 2, 1);
  EXPECT_FALSE(comms_[1]->ready());
  comms_[0] = std::make_unique<NcclComm>(id, 2, 0);
  EXPECT_TRUE(becomes_ready(*comms_[1]));
}

TEST_F(NcclCommTest, CanEndBeforeAllRanksJoined) {
  comms_[0] = std::make_unique<NcclComm>(NcclComm::new_id(), 2, 0);
  comms_[0].reset();
  EXPECT_EQ(nccl_buttons().communicators(), communicators_before_);
}

TEST_F(NcclCommTest, IsNotReadyBeforeItsTransfersAreOnTheStream) {
  make_pair();
  nccl_buttons().hold_launches(1);
  exchange(0);
  EXPECT_FALSE(comms_[0]->ready());
  EXPECT_TRUE(is_idle(0));
  nccl_buttons().hold_launches(0);
  exchange(1);
  EXPECT_TRUE(becomes_ready(*comms_[0]));
  EXPECT_TRUE(becomes_idle(0));
}

TEST_F(NcclCommTest, AbortEndsAHungTransfer) {
  make_pair();
  nccl_buttons().hang(1, 1);
  exchange(0);
  exchange(1);
  for (const auto& comm : comms_) ASSERT_TRUE(becomes_ready(*comm));
  EXPECT_FALSE(is_idle(0));
  comms_[0].reset();
  EXPECT_TRUE(becomes_idle(0));
  EXPECT_FALSE(is_idle(1));
  comms_[1].reset();
  EXPECT_TRUE(becomes_idle(1));
}

TEST_F(NcclCommTest, ReportsADeadRank) {
  make_pair();
  exchange(0);
  ASSERT_TRUE(becomes_ready(*comms_[0]));
  nccl_buttons().die(1);
  EXPECT_THAT(failure_of(*comms_[0]), HasSubstr("remote process exited"));
  EXPECT_THROW(exchange(0), Failure);
  comms_[0].reset();
  EXPECT_TRUE(becomes_idle(0));
}

TEST_F(NcclCommTest, ReportsAnAsynchronousError) {
  make_pair();
  nccl_buttons().fail(0, nccl::unhandled_cuda_error);
  EXPECT_THAT(failure_of(*comms_[0]), HasSubstr("unhandled error"));
  EXPECT_TRUE(comms_[1]->ready());
}

TEST_F(NcclCommTest, RefusedTransfersLeaveNoOpenGroupAndAnUnusableCommunicator) {
  make_pair();
  const NcclComm::Transfer nowhere[] = {{Kind::send, 7, memory_[0]->pointer(), 1}};
  EXPECT_THROW(comms_[0]->exchange(nowhere, *streams_[0]), Failure);
  EXPECT_EQ(ncclGroupEnd(), nccl::invalid_usage);  // there is none to end
  EXPECT_THROW(comms_[0]->ready(), Failure);
  EXPECT_THROW(exchange(0), Failure);
}

TEST_F(NcclCommTest, AnotherThreadMayAbortItAndLaterUseFails) {
  make_pair();
  const auto aborts_before = nccl_buttons().aborts(), orphans_before = nccl_buttons().orphans();
  nccl_buttons().hang(0, 1);
  exchange(0);
  ASSERT_TRUE(becomes_ready(*comms_[0]));
  nccl_buttons().hold_aborts(1);
  std::thread other([&] { comms_[0]->abort(); });
  EXPECT_THAT(failure_of(*comms_[0]), HasSubstr("being ended"));
  EXPECT_THROW(exchange(0), Failure);
  EXPECT_TRUE(becomes_idle(0)) << "its kernel ends before the abort has come back";
  nccl_buttons().hold_aborts(0);
  comms_[0]->abort();  // waits for the other one's
  EXPECT_EQ(nccl_buttons().communicators(), communicators_before_ + 1);
  other.join();
  comms_[0].reset();
  EXPECT_EQ(nccl_buttons().aborts(), aborts_before + 1);
  EXPECT_EQ(nccl_buttons().orphans(), orphans_before);
}

TEST_F(NcclCommTest, LeavesNoCommunicatorsBehind) {
  make_pair();
  const auto orphans_before = nccl_buttons().orphans();
  comms_ = {};
  EXPECT_EQ(nccl_buttons().communicators(), communicators_before_);
  EXPECT_EQ(nccl_buttons().orphans(), orphans_before);
}

}  // namespace
}  // namespace ckpt::device
