// What ckptengine takes for granted about NCCL. Against the test double these tests show that it is an NCCL in all that
// matters; against NCCL itself, that what is taken for granted is so:
//   LD_LIBRARY_PATH=FOLDER_OF_THE_DRIVER:FOLDER_OF_NCCL build/release/tests/nccl_conformance_test
// With one GPU a communicator has one rank, which sends to itself; what needs two is for the test double alone.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "nccl.hpp"

namespace ckpt::testing_support {
namespace {

constexpr std::size_t mebibyte = 1 << 20;

nccl::UniqueId new_id() {
  nccl::UniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), nccl::success);
  return id;
}

// One rank; aborted at the end.
class Rank {
 public:
  Rank(const nccl::UniqueId& id, int ranks, int rank) {
    nccl::Config config;
    config.blocking = 0;
    config.min_ctas = config.max_ctas = 1;
    const nccl::Result begun = ncclCommInitRankConfig(&comm_, ranks, id, rank, &config);
    EXPECT_TRUE(begun == nccl::success || begun == nccl::in_progress);
  }
  ~Rank() { abort(); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  nccl::Result state() const {
    nccl::Result state = nccl::success;
    EXPECT_EQ(ncclCommGetAsyncError(comm_, &state), nccl::success);
    return state;
  }
  bool becomes(nccl::Result expected) const {
    return eventually([&] { return state() == expected; });
  }
  nccl::Result send(const GpuBytes& bytes, int peer, CUstream stream) const {
    return ncclSend(bytes.data(), bytes.size_bytes(), nccl::uint8, peer, comm_, stream);
  }
  nccl::Result receive(const GpuBytes& bytes, int peer, CUstream stream) const {
    return ncclRecv(bytes.data(), bytes.size_bytes(), nccl::uint8, peer, comm_, stream);
  }
  nccl::Result use_memory(const GpuBytes& bytes) const {
    void* handle = nullptr;
    return ncclCommRegister(comm_, bytes.data(), bytes.size_bytes(), &handle);
  }
  void abort() {
    if (comm_ != nullptr) ncclCommAbort(comm_);
    comm_ = nullptr;
  }

 private:
  nccl::Communicator* comm_ = nullptr;
};

template <class Body>
void in_group(Body body) {
  EXPECT_EQ(ncclGroupStart(), nccl::success);
  body();
  const nccl::Result ended = ncclGroupEnd();
  EXPECT_TRUE(ended == nccl::success || ended == nccl::in_progress) << ended;
}

bool is_idle(CUstream stream) { return cuStreamQuery(stream) == CUDA_SUCCESS; }
bool becomes_idle(CUstream stream) {
  return eventually([&] { return is_idle(stream); });
}

class NcclConformance : public NcclTest {};

// Ranks 0 and 1 of a communicator, each with a stream; both are this process's, and so the test double's alone.
class NcclPair : public NcclTest {
 protected:
  void SetUp() override {
    NcclTest::SetUp();
    if (!has_nccl_buttons()) GTEST_SKIP() << "needs two GPUs, and an NCCL that fails on command";
    const nccl::UniqueId id = new_id();
    zero_ = std::make_unique<Rank>(id, 2, 0);
    one_ = std::make_unique<Rank>(id, 2, 1);
    ASSERT_TRUE(zero_->becomes(nccl::success));
    ASSERT_TRUE(one_->becomes(nccl::success));
    stream_0_.emplace();
    stream_1_.emplace();
  }
  // What the first group of two does, which waits for the other's.
  void connect() {
    const GpuBytes byte_0(1), byte_1(1);
    EXPECT_EQ(zero_->send(byte_0, 1, *stream_0_), nccl::in_progress);
    EXPECT_EQ(one_->receive(byte_1, 0, *stream_1_), nccl::in_progress);
    ASSERT_TRUE(zero_->becomes(nccl::success));
    ASSERT_TRUE(one_->becomes(nccl::success));
    ASSERT_TRUE(becomes_idle(*stream_0_));
    ASSERT_TRUE(becomes_idle(*stream_1_));
  }
  void TearDown() override {
    reset_nccl();  // what hangs may end
    zero_.reset();
    one_.reset();
    stream_0_.reset();
    stream_1_.reset();
    NcclTest::TearDown();
  }

  std::unique_ptr<Rank> zero_, one_;
  std::optional<GpuStream> stream_0_, stream_1_;
};

TEST_F(NcclConformance, IsNewEnough) {
  int version = 0;
  ASSERT_EQ(ncclGetVersion(&version), nccl::success);
  EXPECT_GE(version, nccl::version_min);
}

TEST_F(NcclConformance, EveryErrorHasAText) {
  for (const auto result : {nccl::success, nccl::system_error, nccl::remote_error, nccl::in_progress})
    EXPECT_STRNE(ncclGetErrorString(result), "");
}

TEST_F(NcclConformance, SingleRankSendsToItself) {
  const Rank rank(new_id(), 1, 0);
  ASSERT_TRUE(rank.becomes(nccl::success));
  const auto bytes = bytes_of(3 * mebibyte + 7, 1);
  const GpuBytes from(bytes), to(bytes.size());
  const GpuStream stream;
  in_group([&] {
    rank.send(from, 0, stream);
    rank.receive(to, 0, stream);
  });
  ASSERT_TRUE(rank.becomes(nccl::success));
  ASSERT_TRUE(becomes_idle(stream));
  EXPECT_EQ(to.read(), bytes);
}

TEST_F(NcclConformance, AbortMayPrecedeDeregistrationOfMemory) {
  Rank rank(new_id(), 1, 0);
  ASSERT_TRUE(rank.becomes(nccl::success));
  const auto bytes = bytes_of(3 * mebibyte + 7, 1);
  const GpuBytes from(bytes), to(bytes.size());
  const GpuStream stream;
  EXPECT_EQ(rank.use_memory(from), nccl::success);
  EXPECT_EQ(rank.use_memory(to), nccl::success);
  EXPECT_EQ(rank.state(), nccl::success);
  in_group([&] {
    rank.send(from, 0, stream);
    rank.receive(to, 0, stream);
  });
  ASSERT_TRUE(rank.becomes(nccl::success));
  ASSERT_TRUE(becomes_idle(stream));
  EXPECT_EQ(to.read(), bytes);
  rank.abort();
}

TEST_F(NcclConformance, MatchesSendsAndReceivesOfAGroupInOrder) {
  const Rank rank(new_id(), 1, 0);
  ASSERT_TRUE(rank.becomes(nccl::success));
  const auto first = bytes_of(mebibyte, 2), second = bytes_of(5, 3);
  const GpuBytes from_1(first), from_2(second), to_1(first.size()), to_2(second.size());
  const GpuStream stream;
  in_group([&] {
    rank.receive(to_1, 0, stream);
    rank.send(from_1, 0, stream);
    rank.send(from_2, 0, stream);
    rank.receive(to_2, 0, stream);
  });
  ASSERT_TRUE(rank.becomes(nccl::success));
  ASSERT_TRUE(becomes_idle(stream));
  EXPECT_EQ(to_1.read(), first);
  EXPECT_EQ(to_2.read(), second);
}

TEST_F(NcclConformance, RunsGroupsOfAStreamInOrder) {
  const Rank rank(new_id(), 1, 0);
  ASSERT_TRUE(rank.becomes(nccl::success));
  const auto bytes = bytes_of(mebibyte, 4);
  const GpuBytes a(bytes), b(mebibyte), c(mebibyte);
  const GpuStream stream;
  for (const auto& [from, to] : {std::pair(&a, &b), std::pair(&b, &c)}) {
    in_group([&, from = from, to = to] {
      rank.send(*from, 0, stream);
      rank.receive(*to, 0, stream);
    });
    ASSERT_TRUE(rank.becomes(nccl::success));
  }
  ASSERT_TRUE(becomes_idle(stream));
  EXPECT_EQ(c.read(), bytes);
}

TEST_F(NcclConformance, EmptyGroupDoesNothing) {
  const Rank rank(new_id(), 1, 0);
  ASSERT_TRUE(rank.becomes(nccl::success));
  in_group([] {});
  EXPECT_TRUE(rank.becomes(nccl::success));
}

TEST_F(NcclConformance, IdleCommunicatorCanBeAborted) {
  Rank rank(new_id(), 1, 0);
  ASSERT_TRUE(rank.becomes(nccl::success));
  rank.abort();
}

TEST_F(NcclConformance, GroupWaitsForEarlierWorkOfItsStream) {
  if (!has_buttons()) GTEST_SKIP();
  const Rank rank(new_id(), 1, 0);
  ASSERT_TRUE(rank.becomes(nccl::success));
  const auto bytes = bytes_of(mebibyte, 5);
  const GpuBytes from(mebibyte), to(mebibyte);
  const GpuStream stream;
  buttons().hold(CKPT_DOUBLE_TO_DEVICE, 1);
  ASSERT_CUDA(cuMemcpyHtoDAsync(from.pointer(), bytes.data(), mebibyte, stream));
  in_group([&] {
    rank.send(from, 0, stream);
    rank.receive(to, 0, stream);
  });
  ASSERT_TRUE(rank.becomes(nccl::success));
  buttons().hold(CKPT_DOUBLE_TO_DEVICE, 0);
  ASSERT_TRUE(becomes_idle(stream));
  EXPECT_EQ(to.read(), bytes);
}

TEST_F(NcclConformance, RankWithoutItsPeersStaysInProgressAndCanBeAborted) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  Rank rank(new_id(), 2, 1);
  EXPECT_EQ(rank.state(), nccl::in_progress);
  const GpuBytes bytes(1);
  const GpuStream stream;
  EXPECT_TRUE(is_idle(stream));
  rank.abort();
}

TEST_F(NcclConformance, RefusedCallBreaksTheCommunicator) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  const GpuBytes from(1), to(1);
  const GpuStream stream;
  Rank early(new_id(), 2, 1);
  EXPECT_EQ(early.send(from, 0, stream), nccl::invalid_argument);  // it is in progress
  EXPECT_EQ(early.state(), nccl::invalid_argument);
  const Rank rank(new_id(), 1, 0);
  ASSERT_TRUE(rank.becomes(nccl::success));
  EXPECT_EQ(rank.send(from, 7, stream), nccl::invalid_argument);  // there is no such rank
  EXPECT_EQ(rank.state(), nccl::invalid_argument);
  EXPECT_EQ(rank.receive(to, 0, stream), nccl::invalid_argument);
}

// NCCL may have put a group onto its stream before anybody can look.
TEST_F(NcclConformance, GroupIsEnqueuedOnceItIsNoLongerInProgress) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  const Rank rank(new_id(), 1, 0);
  ASSERT_TRUE(rank.becomes(nccl::success));
  const auto bytes = bytes_of(4096, 6);
  const GpuBytes from(bytes), to(4096);
  const GpuStream stream;
  const auto both = [&] {
    rank.send(from, 0, stream);
    rank.receive(to, 0, stream);
  };
  nccl_buttons().hold_launches(1);
  in_group(both);
  EXPECT_EQ(rank.state(), nccl::in_progress);
  EXPECT_TRUE(is_idle(stream));
  nccl_buttons().hold_launches(0);
  ASSERT_TRUE(rank.becomes(nccl::success));
  ASSERT_TRUE(becomes_idle(stream));
  EXPECT_EQ(to.read(), bytes);
}

TEST_F(NcclPair, OneGroupTransfersBytesBothWays) {
  const auto first = bytes_of(5 * mebibyte + 3, 7), second = bytes_of(2 * mebibyte, 8);
  const GpuBytes from_0(first), from_1(second), to_0(second.size()), to_1(first.size());
  in_group([&] {
    zero_->send(from_0, 1, *stream_0_);
    zero_->receive(to_0, 1, *stream_0_);
  });
  in_group([&] {
    one_->send(from_1, 0, *stream_1_);
    one_->receive(to_1, 0, *stream_1_);
  });
  ASSERT_TRUE(becomes_idle(*stream_0_));
  ASSERT_TRUE(zero_->becomes(nccl::success));
  ASSERT_TRUE(becomes_idle(*stream_0_));
  ASSERT_TRUE(one_->becomes(nccl::success));
  ASSERT_TRUE(becomes_idle(*stream_1_));
  EXPECT_EQ(to_0.read(), second);
  EXPECT_EQ(to_1.read(), first);
}

TEST_F(NcclPair, FirstGroupStaysInProgressUntilThePeerIssuesItsOwn) {
  const GpuBytes from(8), to(8);
  zero_->send(from, 1, *stream_0_);
  for (int turn = 0; turn < 300; ++turn) {
    EXPECT_EQ(zero_->state(), nccl::in_progress);
    std::this_thread::yield();
  }
  EXPECT_TRUE(is_idle(*stream_0_));
  one_->receive(to, 0, *stream_1_);
  ASSERT_TRUE(zero_->becomes(nccl::success));
  ASSERT_TRUE(one_->becomes(nccl::success));
  EXPECT_TRUE(becomes_idle(*stream_0_));
  EXPECT_TRUE(becomes_idle(*stream_1_));
}

TEST_F(NcclPair, FirstGroupThatWaitsForThePeerCanBeAborted) {
  const GpuBytes from(8);
  zero_->send(from, 1, *stream_0_);
  zero_->abort();
  EXPECT_TRUE(becomes_idle(*stream_0_));
}

TEST_F(NcclPair, SendWaitsForTheReceive) {
  connect();
  const GpuBytes from(8), to(8);
  zero_->send(from, 1, *stream_0_);
  ASSERT_TRUE(zero_->becomes(nccl::success));
  EXPECT_FALSE(is_idle(*stream_0_));
  one_->receive(to, 0, *stream_1_);
  EXPECT_TRUE(becomes_idle(*stream_0_));
  ASSERT_TRUE(one_->becomes(nccl::success));
  EXPECT_TRUE(becomes_idle(*stream_1_));
}

TEST_F(NcclPair, TwoRanksThatSendFirstDeadlockUntilAborted) {
  connect();
  const GpuBytes bytes(8), other(8);
  zero_->send(bytes, 1, *stream_0_);
  one_->send(bytes, 0, *stream_1_);
  ASSERT_TRUE(zero_->becomes(nccl::success));
  ASSERT_TRUE(one_->becomes(nccl::success));
  zero_->receive(other, 1, *stream_0_);
  one_->receive(other, 0, *stream_1_);
  ASSERT_TRUE(zero_->becomes(nccl::success));
  ASSERT_TRUE(one_->becomes(nccl::success));
  EXPECT_FALSE(is_idle(*stream_0_));
  EXPECT_FALSE(is_idle(*stream_1_));
  zero_->abort();
  one_->abort();
  EXPECT_TRUE(becomes_idle(*stream_0_));
  EXPECT_TRUE(becomes_idle(*stream_1_));
}

TEST_F(NcclPair, HungTransferBlocksNoOtherStreamAndEndsWhenAborted) {
  connect();
  nccl_buttons().hang(0, 1);
  const GpuBytes from(8), to(8), elsewhere(8);
  zero_->send(from, 1, *stream_0_);
  one_->receive(to, 0, *stream_1_);
  ASSERT_TRUE(zero_->becomes(nccl::success));
  ASSERT_TRUE(one_->becomes(nccl::success));
  const GpuStream other;
  ASSERT_CUDA(cuMemsetD8Async(elsewhere.pointer(), 1, 8, other));
  EXPECT_TRUE(becomes_idle(other));
  EXPECT_FALSE(is_idle(*stream_0_));
  EXPECT_FALSE(is_idle(*stream_1_));
  EXPECT_EQ(zero_->state(), nccl::success);  // nobody is told
  zero_->abort();
  EXPECT_TRUE(becomes_idle(*stream_0_));
  one_->abort();
  EXPECT_TRUE(becomes_idle(*stream_1_));
}

TEST_F(NcclPair, PeerOfADeadRankGetsAnErrorAndIsFreedByAbort) {
  connect();
  const GpuBytes to(8);
  one_->receive(to, 0, *stream_1_);
  ASSERT_TRUE(one_->becomes(nccl::success));
  nccl_buttons().die(0);
  EXPECT_TRUE(one_->becomes(nccl::remote_error));
  EXPECT_FALSE(is_idle(*stream_1_));
  EXPECT_EQ(one_->receive(to, 0, *stream_1_), nccl::remote_error);
  one_->abort();
  EXPECT_TRUE(becomes_idle(*stream_1_));
}

TEST_F(NcclPair, OnlyTheFailedRankReportsAnAsynchronousError) {
  nccl_buttons().fail(1, nccl::system_error);
  EXPECT_EQ(one_->state(), nccl::system_error);
  EXPECT_EQ(zero_->state(), nccl::success);
  const GpuBytes to(8);
  EXPECT_EQ(one_->receive(to, 0, *stream_1_), nccl::system_error);
}

TEST_F(NcclPair, WaitsForASlowRank) {
  nccl_buttons().slow(0, 20'000);
  const auto bytes = bytes_of(mebibyte, 9);
  const GpuBytes from(bytes), to(mebibyte);
  zero_->send(from, 1, *stream_0_);
  one_->receive(to, 0, *stream_1_);
  ASSERT_TRUE(one_->becomes(nccl::success));
  EXPECT_TRUE(becomes_idle(*stream_1_));
  EXPECT_EQ(to.read(), bytes);
}

TEST_F(NcclPair, MismatchedSizesNeverEnd) {
  const auto before = nccl_buttons().mismatches();
  const GpuBytes from(8), to(9);
  zero_->send(from, 1, *stream_0_);
  one_->receive(to, 0, *stream_1_);
  EXPECT_TRUE(zero_->becomes(nccl::invalid_usage));
  EXPECT_EQ(nccl_buttons().mismatches(), before + 1);
  EXPECT_FALSE(is_idle(*stream_0_));
  EXPECT_FALSE(is_idle(*stream_1_));
  zero_->abort();
  one_->abort();
}

TEST_F(NcclPair, DeadContextAllowsAborts) {
  connect();
  const GpuBytes to(8);
  one_->receive(to, 0, *stream_1_);
  ASSERT_TRUE(one_->becomes(nccl::success));
  buttons().kill_context(CUDA_ERROR_ILLEGAL_ADDRESS);
  zero_->abort();
  one_->abort();
}

TEST_F(NcclPair, AnotherThreadMayAbortWhileTheIssuingThreadLives) {
  const auto before = nccl_buttons().orphans();
  connect();
  const GpuBytes to(8);
  EXPECT_EQ(one_->receive(to, 0, *stream_1_), nccl::in_progress);
  ASSERT_TRUE(one_->becomes(nccl::success));
  buttons().hold_calls(CKPT_DOUBLE_CALLS_WAIT_FOR_KERNEL);
  std::thread([&] { one_->abort(); }).join();
  EXPECT_TRUE(becomes_idle(*stream_1_));
  EXPECT_EQ(nccl_buttons().orphans(), before);
}

// NCCL may keep in the memory of the thread that issued what the group is at.
TEST_F(NcclPair, CountsAbortsThatReturnAfterTheIssuingThreadEnded) {
  const auto before = nccl_buttons().orphans();
  connect();
  zero_->abort();
  EXPECT_EQ(nccl_buttons().orphans(), before);
  const GpuBytes to(8);
  std::thread([&] { one_->receive(to, 0, *stream_1_); }).join();
  one_->abort();
  EXPECT_EQ(nccl_buttons().orphans(), before + 1);
}

// Rank 1 of a communicator in another process: sends 16 bytes, then waits for what never comes.
void be_the_other(const char* name) {
  nccl::UniqueId id{};
  std::strncpy(id.internal, name, sizeof(id.internal) - 1);
  const GpuBytes bytes(bytes_of(16, 10));
  const GpuStream stream;
  const Rank rank(id, 2, 1);
  ASSERT_TRUE(rank.becomes(nccl::success));
  rank.send(bytes, 0, stream);
  ASSERT_TRUE(rank.becomes(nccl::success));
  rank.receive(bytes, 0, stream);
  ASSERT_TRUE(rank.becomes(nccl::success));  // else it is not on the stream yet
  cuStreamSynchronize(stream);
}

// This test again, in a process of its own.
pid_t spawn_the_other() {
  char program[] = "/proc/self/exe";
  std::string filter = std::string("--gtest_filter=*.") + testing::UnitTest::GetInstance()->current_test_info()->name();
  char* arguments[] = {program, filter.data(), nullptr};
  pid_t child = 0;
  EXPECT_EQ(::posix_spawn(&child, program, nullptr, nullptr, arguments, environ), 0);
  return child;
}

TEST_F(NcclConformance, KilledRankProcessIsReportedAsARemoteError) {
  constexpr const char* id_variable = "CKPTENGINE_TEST_NCCL_ID";
  if (!has_nccl_buttons()) GTEST_SKIP();
  if (const char* const name = std::getenv(id_variable)) return be_the_other(name);
  const nccl::UniqueId id = new_id();
  ::setenv(id_variable, id.internal, 1);
  const pid_t child = spawn_the_other();
  ::unsetenv(id_variable);
  const GpuBytes bytes(16);
  const GpuStream stream;
  const Rank rank(id, 2, 0);
  ASSERT_TRUE(rank.becomes(nccl::success));
  rank.receive(bytes, 1, stream);
  ASSERT_TRUE(rank.becomes(nccl::success));
  EXPECT_TRUE(becomes_idle(stream));
  EXPECT_EQ(bytes.read(), bytes_of(16, 10));
  rank.receive(bytes, 1, stream);
  ASSERT_TRUE(rank.becomes(nccl::success));
  ::kill(child, SIGKILL);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(rank.becomes(nccl::remote_error));
}

}  // namespace
}  // namespace ckpt::testing_support
