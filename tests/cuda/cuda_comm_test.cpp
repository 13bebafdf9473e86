// Communications that the engine marks on the GPU's timeline.
#include "cuda_engine_fixture.hpp"

namespace ckpt::client {
namespace {

using arena::CommKind;

// Communications that are copies to the device, which tests can hold.
class GpuCommTest : public CudaEngineTest {
 protected:
  void SetUp() override {
    CudaEngineTest::SetUp();
    if (IsSkipped()) return;
    buffer_.emplace(1);
    open();
  }
  void TearDown() override {
    if (buttons().reset != nullptr) buttons().reset();
    engine_.reset();
    buffer_.reset();
    CudaEngineTest::TearDown();
  }
  void open() {
    engine_.reset();
    engine_ = started();
    restore(*engine_);
    reader_.emplace(agent_->control().comm());
  }
  void hold(bool held) { buttons().hold(CKPT_DOUBLE_TO_DEVICE, held ? 1 : 0); }
  void communicate(CUstream on) {
    const std::byte byte{1};
    EXPECT_CUDA(cuMemcpyHtoDAsync(buffer_->pointer(), &byte, 1, on));
  }
  bool becomes_busy() {
    return eventually([this] { return reader_->is_busy(); });
  }
  bool becomes_idle() {
    return eventually([this] { return !reader_->is_busy(); });
  }
  // The events' kinds, once there are as many.
  std::vector<CommKind> marks(std::size_t count) {
    eventually([&] { return reader_->read(events_) && events_.size() >= count; });
    std::vector<CommKind> kinds;
    for (const arena::CommEvent& event : events_) kinds.push_back(event.kind);
    return kinds;
  }

  std::optional<GpuBytes> buffer_;
  std::unique_ptr<Engine> engine_;
  std::optional<arena::CommReader> reader_;
  std::vector<arena::CommEvent> events_;
};
using HeldGpuCommTest = Held<GpuCommTest>;

TEST_F(HeldGpuCommTest, GateFollowsTheGpuNotTheHost) {
  hold(true);
  communicate(stream());  // what is before
  engine_->comm_begin(2, stream());
  communicate(stream());
  EXPECT_EQ(engine_->comm_end(2, stream()).status, CKPT_OK);
  EXPECT_FALSE(reader_->is_busy());
  buttons().let(CKPT_DOUBLE_TO_DEVICE, 1);
  EXPECT_TRUE(becomes_busy());
  EXPECT_EQ(marks(1), std::vector{CommKind::begin});
  hold(false);
  EXPECT_TRUE(becomes_idle());
  EXPECT_EQ(marks(2), (std::vector{CommKind::begin, CommKind::end}));
  EXPECT_EQ(events_[0].channel, 2);
  EXPECT_EQ(events_[1].channel, 2);
  EXPECT_GT(events_[1].at_us, events_[0].at_us);
}

TEST_F(HeldGpuCommTest, IterationEndsWhenTheGpuReachesItsEnd) {
  engine_->comm_begin(0, stream());
  hold(true);
  communicate(stream());
  EXPECT_EQ(engine_->comm_end(0, stream()).status, CKPT_OK);
  ASSERT_EQ(snapshot(*engine_, 0).status, CKPT_OK);
  EXPECT_EQ(marks(1), std::vector{CommKind::begin});
  hold(false);
  EXPECT_EQ(marks(3), (std::vector{CommKind::begin, CommKind::end, CommKind::iteration}));
}

TEST_F(HeldGpuCommTest, ToleratesStreamsThatOvertakeEachOther) {
  const GpuStream one, two;
  hold(true);
  engine_->comm_begin(0, one);
  engine_->comm_begin(0, two);
  communicate(one);
  EXPECT_EQ(engine_->comm_end(0, one).status, CKPT_OK);
  EXPECT_EQ(engine_->comm_end(0, two).status, CKPT_OK);
  ASSERT_CUDA(cuStreamSynchronize(two));
  EXPECT_TRUE(becomes_busy());
  hold(false);
  EXPECT_TRUE(becomes_idle());
  ASSERT_CUDA(cuStreamSynchronize(one));
  EXPECT_FALSE(reader_->is_busy());
}

TEST_F(GpuCommTest, ReusesPlaces) {
  for (std::uint32_t i = 0; i < 2 * arena::comm_gpu_max + 3; ++i) {
    const std::uint64_t total = reader_->begun_total();
    engine_->comm_begin(i % 8, stream());
    ASSERT_CUDA(cuStreamSynchronize(stream()));
    ASSERT_TRUE(reader_->is_busy());
    ASSERT_NE(reader_->begun_total(), total);
    ASSERT_EQ(engine_->comm_end(i % 8, stream()).status, CKPT_OK);
    ASSERT_CUDA(cuStreamSynchronize(stream()));
    ASSERT_FALSE(reader_->is_busy());
  }
}

TEST_F(HeldGpuCommTest, IgnoresCommunicationsBeyondItsPlaces) {
  buttons().queue_depth(100'000);
  hold(true);
  communicate(stream());
  for (std::uint32_t i = 0; i < arena::comm_gpu_max + 100; ++i) {
    engine_->comm_begin(1, stream());
    ASSERT_EQ(engine_->comm_end(1, stream()).status, CKPT_OK);
  }
  hold(false);
  ASSERT_CUDA(cuStreamSynchronize(stream()));
  EXPECT_FALSE(reader_->is_busy());
  EXPECT_EQ(marks(2 * arena::comm_gpu_max).size(), 2 * arena::comm_gpu_max);
  EXPECT_EQ(engine_->comm_end(1, stream()).status, CKPT_ERR_INVALID);
}

TEST_F(GpuCommTest, IgnoresCommunicationsCapturedInAGraph) {
  ASSERT_CUDA(cuStreamBeginCapture(stream(), CU_STREAM_CAPTURE_MODE_GLOBAL));
  engine_->comm_begin(0, stream());
  EXPECT_EQ(engine_->comm_end(0, stream()).status, CKPT_OK);
  CUgraph graph = nullptr;
  ASSERT_CUDA(cuStreamEndCapture(stream(), &graph));
  engine_->comm_begin(0, stream());
  EXPECT_EQ(engine_->comm_end(0, stream()).status, CKPT_OK);
  EXPECT_EQ(marks(2), (std::vector{CommKind::begin, CommKind::end}));
  EXPECT_EQ(reader_->begun_total(), 1u);
}

TEST_F(GpuCommTest, HostMarksAnEndThatTheGpuCannot) {
  engine_->comm_begin(0, stream());
  EXPECT_TRUE(becomes_busy());
  ASSERT_CUDA(cuStreamBeginCapture(stream(), CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(engine_->comm_end(0, stream()).status, CKPT_OK);
  EXPECT_FALSE(reader_->is_busy());
  CUgraph graph = nullptr;
  ASSERT_CUDA(cuStreamEndCapture(stream(), &graph));
}

TEST_F(HeldGpuCommTest, HostMarksCommunicationsIfTheGpuCannot) {
  buttons().refuse_stream_writes(CUDA_ERROR_NOT_SUPPORTED);
  open();
  hold(true);
  communicate(stream());
  engine_->comm_begin(3, stream());
  EXPECT_TRUE(reader_->is_busy());
  EXPECT_EQ(engine_->comm_end(3, stream()).status, CKPT_OK);
  EXPECT_FALSE(reader_->is_busy());
  EXPECT_EQ(engine_->comm_end(3, stream()).status, CKPT_ERR_INVALID);
}

}  // namespace
}  // namespace ckpt::client
