// libckptinterpose before the test double of NCCL, with an engine that the test plays.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "interpose_pair.hpp"

namespace ckpt::testing_support {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// What an engine is told.
class PlayedEngine {
 public:
  explicit PlayedEngine(bool can_be_halted = true) {
    ckpt_interposed_engine engine = {sizeof engine, this, begin, end, can_be_halted ? wait_halt : nullptr};
    EXPECT_EQ(ckpt_interpose_attach(&engine), nullptr);
  }
  ~PlayedEngine() { ckpt_interpose_detach(this); }
  PlayedEngine(const PlayedEngine&) = delete;
  PlayedEngine& operator=(const PlayedEngine&) = delete;

  void halt(std::uint64_t incarnation) { halted_ = incarnation; }
  void mark_nothing() { marks_ = false; }
  void name(const CUstream stream, const char* name) { names_[stream] = name; }
  // Since it was asked before.
  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(told_, {});
  }

 private:
  static int begin(void* self, std::uint32_t, void* stream) {
    auto& engine = *static_cast<PlayedEngine*>(self);
    if (engine.marks_) engine.add("begin", stream);
    return engine.marks_ ? 1 : 0;
  }
  static void end(void* self, std::uint32_t, void* stream) { static_cast<PlayedEngine*>(self)->add("end", stream); }
  static int wait_halt(void* self, std::int64_t timeout_ms, std::uint64_t* incarnation) {
    auto& engine = *static_cast<PlayedEngine*>(self);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    while (engine.halted_ == 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    *incarnation = engine.halted_;
    return *incarnation == 0 ? 0 : 1;
  }
  void add(const char* what, void* stream) {
    const std::lock_guard lock(mutex_);
    told_.push_back(std::string(what) + " " + names_[static_cast<CUstream>(stream)]);
  }

  std::mutex mutex_;
  std::vector<std::string> told_;
  std::map<CUstream, std::string> names_;
  std::atomic<bool> marks_{true};
  std::atomic<std::uint64_t> halted_{0};
};

class InterposeTest : public NcclTest {
 protected:
  void SetUp() override {
    NcclTest::SetUp();
    if (!has_nccl_buttons()) GTEST_SKIP() << "needs two GPUs, and an NCCL that hangs on command";
    pair_.emplace();
  }
  void TearDown() override {
    reset_nccl();
    pair_.reset();
    NcclTest::TearDown();
  }
  // Both ranks begin a communication that does not end.
  void hang() {
    nccl_buttons().hang(-1, 1);
    for (const int rank : {0, 1}) pair_->exchange(rank);
    for (const int rank : {0, 1}) ASSERT_TRUE(pair_->becomes_ready(rank));
    for (const int rank : {0, 1}) ASSERT_FALSE(pair_->is_idle(rank));
  }
  std::optional<NcclPair> pair_;
};

TEST_F(InterposeTest, ChangesNothingWithoutAnEngine) {
  EXPECT_EQ(pair_->received[0]->read(), bytes_of(NcclPair::size_bytes, 2));
  EXPECT_EQ(pair_->received[1]->read(), bytes_of(NcclPair::size_bytes, 1));
  hang();
  const auto before = nccl_buttons().aborts();
  for (nccl::Communicator*& comm : pair_->comms) EXPECT_EQ(ncclCommAbort(std::exchange(comm, nullptr)), nccl::success);
  EXPECT_EQ(nccl_buttons().aborts(), before + 2);
}

TEST_F(InterposeTest, MarksAGroupAsOneCommunicationOfItsStream) {
  PlayedEngine engine;
  engine.name(*pair_->streams[0], "first");
  engine.name(*pair_->streams[1], "second");
  nccl_buttons().hold_launches(1);
  EXPECT_EQ(pair_->exchange(0), nccl::in_progress);
  EXPECT_THAT(engine.take(), ElementsAre("begin first"));
  EXPECT_EQ(pair_->error(0), nccl::in_progress);
  EXPECT_THAT(engine.take(), ElementsAre()) << "its end would come before it on the stream";
  nccl_buttons().hold_launches(0);
  ASSERT_TRUE(pair_->becomes_ready(0));
  EXPECT_THAT(engine.take(), ElementsAre("end first"));
  pair_->exchange(1);
  ASSERT_TRUE(pair_->becomes_ready(1));
  EXPECT_THAT(engine.take(), ElementsAre("begin second", "end second"));
}

TEST_F(InterposeTest, MarksEachCommunicatorOfAGroup) {
  PlayedEngine engine;
  engine.name(*pair_->streams[0], "first");
  engine.name(*pair_->streams[1], "second");
  ncclGroupStart();
  for (const int rank : {0, 1}) pair_->exchange(rank);
  EXPECT_THAT(engine.take(), ElementsAre()) << "nothing is enqueued yet";
  ncclGroupEnd();
  EXPECT_THAT(engine.take(), ElementsAre("begin first", "begin second"));
  for (const int rank : {0, 1}) ASSERT_TRUE(pair_->becomes_ready(rank));
  EXPECT_THAT(engine.take(), ElementsAre("end first", "end second"));
}

TEST_F(InterposeTest, MarksACallOutsideAGroup) {
  PlayedEngine engine;
  engine.name(*pair_->streams[0], "first");
  EXPECT_EQ(ncclSend(pair_->sent[0]->data(), 1, nccl::uint8, 1, pair_->comms[0], *pair_->streams[0]),
            nccl::in_progress);
  ASSERT_TRUE(pair_->becomes_ready(0));
  EXPECT_THAT(engine.take(), ElementsAre("begin first", "end first"));
}

TEST_F(InterposeTest, EndsOnlyCommunicationsThatTheEngineMarked) {
  PlayedEngine engine;
  engine.mark_nothing();
  for (const int rank : {0, 1}) pair_->exchange(rank);
  for (const int rank : {0, 1}) ASSERT_TRUE(pair_->becomes_ready(rank));
  EXPECT_THAT(engine.take(), ElementsAre());
}

TEST_F(InterposeTest, DoesNotCallAnEngineThatIsGone) {
  { const PlayedEngine engine; }
  PlayedEngine engine;
  ckpt_interpose_detach(&engine);
  pair_->exchange(0);
  ASSERT_TRUE(pair_->becomes_ready(0));
  EXPECT_THAT(engine.take(), ElementsAre());
}

TEST_F(InterposeTest, RefusesASecondEngineAndKeepsTheFirst) {
  PlayedEngine first;
  ckpt_interposed_engine second{};
  second.engine = &second;
  EXPECT_THAT(ckpt_interpose_attach(&second), HasSubstr("another engine"));
  ckpt_interpose_detach(&second);
  pair_->exchange(0);
  EXPECT_EQ(first.take().size(), 1u);
}

TEST_F(InterposeTest, HaltAbortsHungCommunicationsAndNcclReturnsErrors) {
  PlayedEngine engine;
  hang();
  const auto before = nccl_buttons().aborts();
  engine.halt(5);
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(pair_->becomes_idle(rank));
    EXPECT_EQ(pair_->error(rank), nccl::remote_error);
    EXPECT_EQ(pair_->exchange(rank), nccl::success) << "an empty group";
    EXPECT_EQ(ncclSend(pair_->sent[rank]->data(), 1, nccl::uint8, 1 - rank, pair_->comms[rank], *pair_->streams[rank]),
              nccl::remote_error);
    EXPECT_THAT(ncclGetLastError(pair_->comms[rank]), HasSubstr("because the job was halted"));
    EXPECT_EQ(ncclCommAbort(std::exchange(pair_->comms[rank], nullptr)), nccl::success);
  }
  EXPECT_EQ(nccl_buttons().aborts(), before + 2) << "each once, though training aborts them, too";
}

TEST_F(InterposeTest, KeepsNewCommunicatorsUntilTheNextHalt) {
  PlayedEngine engine;
  engine.halt(5);
  ASSERT_TRUE(eventually([&] { return pair_->error(0) == nccl::remote_error; }));
  EXPECT_EQ(ckpt_interpose_abort(&engine, 5, 20'000), 0u);
  const auto aborts = nccl_buttons().aborts();
  pair_.reset();  // first: a new one may get its address
  NcclPair next;
  EXPECT_EQ(ckpt_interpose_abort(&engine, 5, 20'000), 0u);
  EXPECT_EQ(next.error(0), nccl::success);
  EXPECT_EQ(nccl_buttons().aborts(), aborts);
  engine.halt(6);
  EXPECT_TRUE(eventually([&] { return next.error(1) == nccl::remote_error; }));
}

TEST_F(InterposeTest, ReportsAHungAbortWithoutBlockingOthers) {
  PlayedEngine engine;
  hang();
  nccl_buttons().hold_aborts(1);
  EXPECT_EQ(ckpt_interpose_abort(&engine, 5, 50), 2u);
  nccl_buttons().hold_aborts(0);
  EXPECT_EQ(ckpt_interpose_abort(&engine, 5, 20'000), 0u);
}

TEST_F(InterposeTest, ClosingAnUnhaltedEngineKeepsCommunicators) {
  PlayedEngine engine(false);
  engine.halt(5);
  for (const int rank : {0, 1}) pair_->exchange(rank);
  for (const int rank : {0, 1}) EXPECT_TRUE(pair_->becomes_ready(rank));
}

}  // namespace
}  // namespace ckpt::testing_support
