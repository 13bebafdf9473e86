// GPU replication takes the bytes of a capture from the GPU while they are there, and from the slot afterwards. What
// arrives is always what was captured, and no capture waits for replication.
#include <gmock/gmock.h>

#include <semaphore>

#include "capturing_ranks.hpp"
#include "nccl.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::testing_support {
namespace {

constexpr std::size_t leaf = kernels::leaf_size_bytes;
constexpr std::uint64_t chunk_bytes = 2 * leaf;
constexpr std::uint32_t sub_buffers = 3;
// Tensors of one rank: large ones, which are copied directly, and small ones with odd ends.
const std::vector<std::size_t> sizes = {9 * leaf + 100, 16, 8 * leaf + 1, 77, 5 * leaf};
// A ring of four sub-buffers of four leaves. So two of the capture's six chunks are direct.
constexpr std::uint64_t some_staging = 16 * leaf, direct_bytes = 8 * leaf;
constexpr std::uint64_t all_staging = 64 * leaf;

schedule::Training communicating() { return {{schedule::NetworkState::busy, 0}, 0}; }
schedule::Training idle() { return {{schedule::NetworkState::idle, 1e3}, 1e3}; }

// The tensors of one rank.
class State {
 public:
  State() {
    for (const std::size_t size_bytes : sizes) memories_.push_back(std::make_unique<GpuBytes>(size_bytes));
    std::vector<device::Plan::Region> regions;
    for (const auto& memory : memories_)
      regions.push_back({static_cast<std::byte*>(memory->data()), memory->size_bytes(), CKPT_DEVICE});
    plan_ = std::make_unique<device::Plan>(regions);
  }
  const device::Plan& plan() const { return *plan_; }
  void fill(std::uint64_t seed) const {
    for (const auto& memory : memories_) memory->write(bytes_of(memory->size_bytes(), ++seed * 1000));
  }
  // What an optimizer does: enqueued, not waited for.
  void update(CUstream stream) const {
    for (const auto& memory : memories_)
      EXPECT_CUDA(cuMemsetD8Async(memory->pointer(), 0xEE, memory->size_bytes(), stream));
  }

 private:
  std::vector<std::unique_ptr<GpuBytes>> memories_;
  std::unique_ptr<device::Plan> plan_;
};

class ReplicatedCaptureTest : public NcclTest {
 protected:
  void SetUp() override {
    NcclTest::SetUp();
    if (!IsSkipped() && !has_nccl_buttons()) GTEST_SKIP() << "needs as many GPUs as members";
    if (IsSkipped()) return;
    stream_ = std::make_unique<GpuStream>();
    for (auto& state : states_) state = std::make_unique<State>();
  }
  void TearDown() override {
    reset_nccl();
    if (has_buttons()) buttons().reset();
    ranks_.reset();
    for (auto& state : states_) state.reset();
    stream_.reset();
    NcclTest::TearDown();
  }
  void meet(std::uint64_t staging_bytes) {
    CapturingRank::Settings settings;
    settings.buffers = sub_buffers;
    settings.replicator.reserved_bytes = sub_buffers * 2 * chunk_bytes;
    settings.replicator.step_timeout_ms = settings.replicator.end_timeout_ms = 50'000;
    settings.training = [this] { return is_communicating_ ? communicating() : idle(); };
    ranks_ = std::make_unique<CapturingRanks>(directory_.path(), std::vector{&states_[0]->plan(), &states_[1]->plan()},
                                              staging_bytes, settings);
    for (std::size_t rank = 0; rank < 2; ++rank) ASSERT_EQ(replication(rank).take_news().value_or(""), "");
    to_device_before_ = to_device_bytes();
  }
  client::GpuReplication& replication(std::size_t rank) { return (*ranks_)[rank].replication(); }
  void snapshot(std::int64_t iteration) {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      states_[rank]->fill(100 * rank + static_cast<std::uint64_t>(iteration));
      (*ranks_)[rank].snapshot(iteration, static_cast<CUstream>(*stream_));
    }
  }
  void update() {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      (*ranks_)[rank].before_update(static_cast<CUstream>(*stream_));
      states_[rank]->update(*stream_);
    }
  }
  // What training has enqueued before its next snapshot, until the semaphore is released.
  void hold_stream(std::binary_semaphore& arrives) const {
    const CUhostFn wait = [](void* semaphore) { static_cast<std::binary_semaphore*>(semaphore)->acquire(); };
    ASSERT_CUDA(cuLaunchHostFunc(*stream_, wait, &arrives));
  }
  bool captured() {
    return eventually([&] { return ranks_->all_captured(); });
  }
  bool received(std::int64_t iteration) {
    return eventually([&] { return ranks_->all_received(iteration); });
  }
  bool is_held() {
    return eventually([&] { return replication(0).is_held() && replication(1).is_held(); });
  }
  // Long enough for everything that may happen now.
  void let_agents_work() {
    const std::uint64_t rounds = ranks_->rounds() + 300;
    ASSERT_TRUE(eventually([&] { return ranks_->rounds() >= rounds; }));
  }
  // Bytes that went to the GPU since meet(), without the tables that say where tensors are: fill() counts them, too.
  std::uint64_t filled_from_slots(std::uint64_t snapshots) const {
    const std::uint64_t tables = (sizes.size() + 2) * sizeof(kernels::device::DeviceSegment);
    return to_device_bytes() - to_device_before_ - snapshots * (2 * tables + state_bytes());
  }
  static ckpt_double_traffic traffic(const std::string& name) {
    ckpt_double_traffic sums{};
    for (std::uint64_t i = 0; buttons().traffic_at(i, &sums) != 0; ++i)
      if (sums.name == name) return sums;
    return {};
  }
  static std::uint64_t to_device_bytes() { return traffic("copy_to_device").to_device_bytes; }
  static std::uint64_t to_host_bytes() { return traffic("copy_to_host").to_host_bytes; }
  // Of both ranks.
  std::uint64_t state_bytes() const { return 2 * states_[0]->plan().length_bytes(); }

  std::atomic<bool> is_communicating_{false};
  std::unique_ptr<GpuStream> stream_;
  std::array<std::unique_ptr<State>, 2> states_;
  std::unique_ptr<CapturingRanks> ranks_;
  std::uint64_t to_device_before_ = 0;

 private:
  test::TemporaryDirectory directory_{test::in_memory};
};

TEST_F(ReplicatedCaptureTest, TakesAllBytesFromTheTensorsUntilTheUpdate) {
  meet(some_staging);
  snapshot(1);
  ASSERT_TRUE(received(1));
  EXPECT_EQ(filled_from_slots(1), 0u);
  update();
  ASSERT_TRUE(captured());
  EXPECT_TRUE(ranks_->all_match(1));
}

// Into the slot, to the sender's adapter, from the receiver's adapter, and to the receiver's host memory.
TEST_F(ReplicatedCaptureTest, EachByteCrossesPcieFourTimesInTotal) {
  meet(some_staging);
  const auto to_host_before = to_host_bytes(), sent_before = nccl_buttons().sent_bytes();
  snapshot(1);
  ASSERT_TRUE(received(1));
  update();
  ASSERT_TRUE(captured());
  const std::uint64_t digests = 2 * states_[0]->plan().leaves() * sizeof(std::uint64_t);
  EXPECT_EQ(to_host_bytes() - to_host_before, 2 * state_bytes() + digests);
  EXPECT_EQ(nccl_buttons().sent_bytes() - sent_before, state_bytes());
  EXPECT_EQ(filled_from_slots(1), 0u);
}

TEST_F(ReplicatedCaptureTest, TakesBytesFromSubBuffersOfTheCaptureAfterTheUpdate) {
  is_communicating_ = true;
  meet(all_staging);
  snapshot(1);
  update();
  ASSERT_TRUE(captured());
  is_communicating_ = false;
  ASSERT_TRUE(received(1));
  EXPECT_EQ(filled_from_slots(1), 0u);
  EXPECT_TRUE(ranks_->all_match(1));
}

// The exchange had filled its own sub-buffers before the update.
TEST_F(ReplicatedCaptureTest, TakesBytesFromTheSlotOnceTheGpuLacksThem) {
  is_communicating_ = true;
  meet(some_staging);
  snapshot(1);
  ASSERT_TRUE(is_held());
  update();
  ASSERT_TRUE(captured());
  is_communicating_ = false;
  ASSERT_TRUE(received(1));
  EXPECT_LE(filled_from_slots(1), 2 * direct_bytes);
  EXPECT_GE(filled_from_slots(1), 2 * (direct_bytes - sub_buffers * chunk_bytes));
  EXPECT_TRUE(ranks_->all_match(1));
}

// The next capture packs over the sub-buffers in which the last bytes were.
TEST_F(ReplicatedCaptureTest, SendsACaptureAfterALaterOneReusedTheSubBuffers) {
  is_communicating_ = true;
  meet(some_staging);
  snapshot(1);
  ASSERT_TRUE(is_held());
  update();
  ASSERT_TRUE(captured());
  snapshot(2);
  update();
  ASSERT_TRUE(captured());
  is_communicating_ = false;
  ASSERT_TRUE(received(1));
  EXPECT_TRUE(ranks_->all_match(1));
  EXPECT_GE(filled_from_slots(2), state_bytes() - 2 * sub_buffers * chunk_bytes);
  ranks_->take(1);
  ASSERT_TRUE(received(2));
  EXPECT_TRUE(ranks_->all_match(2));
}

// Rank 1 sends nothing, so that all sub-buffers of the exchange stay full.
TEST_F(ReplicatedCaptureTest, CapturesAndUpdatesContinueWhileTheExchangeHangs) {
  meet(some_staging);
  nccl_buttons().hang(1, 1);
  for (std::int64_t iteration = 1; iteration <= 5; ++iteration) {
    snapshot(iteration);
    update();
    ASSERT_TRUE(captured()) << iteration;
    ASSERT_CUDA(cuStreamSynchronize(*stream_));
  }
  EXPECT_FALSE(ranks_->all_received(1));
  nccl_buttons().hang(1, 0);
}

// The tensors may still change until then.
TEST_F(ReplicatedCaptureTest, SendsNothingBeforeTheGpuReachesTheCapture) {
  meet(some_staging);
  const auto groups = nccl_buttons().groups();
  std::binary_semaphore arrives{0};
  hold_stream(arrives);
  snapshot(1);
  ASSERT_TRUE(eventually([&] {
    return (*ranks_)[0].receive_buffer().page().own_state()->state.checkpoint != 0 &&
           (*ranks_)[1].receive_buffer().page().own_state()->state.checkpoint != 0;
  }));
  let_agents_work();
  EXPECT_EQ(nccl_buttons().groups(), groups);
  arrives.release();
  ASSERT_TRUE(received(1));
  EXPECT_EQ(filled_from_slots(1), 0u);
  update();
  ASSERT_TRUE(captured());
  EXPECT_TRUE(ranks_->all_match(1));
}

// The sub-buffers of the capture still have the bytes, but a copy out of them would come after the work of training.
TEST_F(ReplicatedCaptureTest, SendsACaptureBeforeTheGpuReachesTheNext) {
  is_communicating_ = true;
  meet(all_staging);
  snapshot(1);
  update();
  ASSERT_TRUE(captured());
  std::binary_semaphore arrives{0};
  hold_stream(arrives);
  snapshot(2);
  is_communicating_ = false;
  EXPECT_TRUE(received(1));
  EXPECT_TRUE(ranks_->all_match(1));
  arrives.release();
  update();
  ASSERT_TRUE(captured());
}

TEST_F(ReplicatedCaptureTest, DropsADiscardedCaptureForTheNextOne) {
  is_communicating_ = true;
  meet(some_staging);
  snapshot(1);
  ASSERT_TRUE(is_held());
  for (std::size_t rank = 0; rank < 2; ++rank) {
    (*ranks_)[rank].discard();
    states_[rank]->update(*stream_);
  }
  is_communicating_ = false;
  ASSERT_CUDA(cuStreamSynchronize(*stream_));
  snapshot(2);
  update();
  ASSERT_TRUE(captured());
  ranks_->take(1);  // the agents fetch the next one
  ASSERT_TRUE(received(2));
  EXPECT_TRUE(ranks_->all_match(2));
}

TEST_F(ReplicatedCaptureTest, QueriesNothingOnTheGpuAfterADiscard) {
  is_communicating_ = true;
  meet(some_staging);
  snapshot(1);
  ASSERT_TRUE(is_held());
  for (std::size_t rank = 0; rank < 2; ++rank) (*ranks_)[rank].discard();
  is_communicating_ = false;  // what was filled is sent
  ASSERT_TRUE(eventually([&] { return (*ranks_)[0].received(1, 1) != 0 && (*ranks_)[1].received(0, 1) != 0; }));
  let_agents_work();
  const auto queries = buttons().event_queries();
  let_agents_work();
  EXPECT_EQ(buttons().event_queries(), queries);
}

// If training breaks its promise, other bytes are sent than were digested: the digests tell.
TEST_F(ReplicatedCaptureTest, BytesThatWereNotCapturedDoNotMatchTheDigests) {
  is_communicating_ = true;
  meet(all_staging);
  const auto to_host = to_host_bytes(), packed = traffic("ckpt_pack").count;
  snapshot(1);
  constexpr std::uint64_t chunks = 2;  // of each capture
  ASSERT_TRUE(eventually([&] {
    return to_host_bytes() >= to_host + state_bytes() &&
           traffic("ckpt_pack").count == packed + 2 * (chunks + sub_buffers);
  }));
  for (const auto& state : states_) state->update(*stream_);
  ASSERT_CUDA(cuStreamSynchronize(*stream_));
  is_communicating_ = false;
  ASSERT_TRUE(received(1));
  EXPECT_FALSE(ranks_->all_match(1));
  update();
  ASSERT_TRUE(captured());
}

}  // namespace
}  // namespace ckpt::testing_support
