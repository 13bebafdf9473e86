// Gradients in device memory: the gradient record has what the GPU had right before the update.
#include <cstring>

#include "arena/gradient_record.hpp"
#include "cuda_engine_fixture.hpp"

namespace ckpt::client {
namespace {

using testing::HasSubstr;

constexpr std::int64_t elements = 300'000;  // so large that captures do not pack it if the staging memory is small
constexpr std::size_t tensor_bytes = elements * sizeof(float);

class CudaGradientsTest : public CudaEngineTest {
 protected:
  void SetUp() override {
    CudaEngineTest::SetUp();
    if (IsSkipped()) return;
    for (std::optional<GpuBytes>* each : {&parameter_, &first_, &second_, &gradient_}) each->emplace(tensor_bytes);
    count_.emplace(sizeof(float));
  }
  void TearDown() override {
    engine_.reset();
    for (std::optional<GpuBytes>* each : {&parameter_, &first_, &second_, &gradient_, &count_}) each->reset();
    CudaEngineTest::TearDown();
  }

  void start(std::uint64_t staging = staging_bytes) {
    engine_ = engine<device::AutoDevice>({{"protection", "recompute(2)"}}, 1u, staging);
    add("p", *parameter_, elements);
    add("m", *first_, elements);
    add("v", *second_, elements);
    add("step", *count_, 1);
    restore(*engine_);
  }
  void add(const char* name, const GpuBytes& memory, std::int64_t count) {
    engine_->register_tensor(
        {sizeof(ckpt_tensor), name, memory.data(), &count, 1, CKPT_F32, CKPT_DEVICE, CKPT_OVERLAPPED});
  }
  ckpt_gradient_t gradient() const {
    ckpt_gradient_t gradient = CKPT_GRADIENT_INIT;
    gradient.parameter = "p", gradient.first_moment = "m", gradient.second_moment = "v", gradient.step_count = "step";
    gradient.data = gradient_->data(), gradient.elements = elements;
    gradient.memory = CKPT_DEVICE, gradient.stream = stream();
    gradient.learning_rate = 1e-3, gradient.beta1 = 0.9, gradient.beta2 = 0.999, gradient.epsilon = 1e-8;
    return gradient;
  }
  // Enqueued, as a backward pass is.
  void produce(unsigned char value) {
    EXPECT_CUDA(cuMemsetD8Async(gradient_->pointer(), value, tensor_bytes, stream()));
  }
  // An update, which also overwrites the gradient, as the next backward pass may.
  void change_all() {
    produce(0xEE);
    EXPECT_CUDA(cuMemsetD8Async(parameter_->pointer(), ++updates_, tensor_bytes, stream()));
    EXPECT_CUDA(cuMemsetD8Async(count_->pointer(), updates_, sizeof(float), stream()));
  }
  void capture(std::int64_t iteration) {
    ASSERT_EQ(snapshot(*engine_, iteration).status, CKPT_OK);
    ASSERT_EQ(before_update(*engine_).status, CKPT_OK);
  }
  void await(std::int64_t iteration) {
    ASSERT_TRUE(captured(*engine_, iteration));
    agent_->grant();
  }
  // The gradient in the record, which must be one value.
  std::optional<unsigned char> recorded(std::int64_t iteration) {
    const auto bytes = agent_->record("rank0", CheckpointId(1, iteration));
    if (!bytes) return std::nullopt;
    const auto record = arena::decode_record(*bytes);
    const std::byte* const at = bytes->data() + record.updated.at(0).gradient_at;
    EXPECT_EQ(std::vector<std::byte>(at, at + tensor_bytes), std::vector<std::byte>(tensor_bytes, *at)) << "it is torn";
    return static_cast<unsigned char>(*at);
  }

  void overwrite_a_record(std::uint64_t staging = staging_bytes) {
    start(staging);
    capture(0);
    produce(1);
    ASSERT_EQ(engine_->add_gradient(gradient()).status, CKPT_OK);
    change_all();
    await(0);
    buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
    capture(1);
    produce(2);
    ASSERT_EQ(engine_->add_gradient(gradient()).status, CKPT_OK);
    change_all();
    buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
    await(1);
    EXPECT_EQ(recorded(1), 1);
    capture(2);
    await(2);
    EXPECT_EQ(recorded(2), 2);
  }

  std::optional<GpuBytes> parameter_, first_, second_, gradient_, count_;
  unsigned char updates_ = 0;
  std::unique_ptr<Engine> engine_;  // last: it may still copy the tensors when the test ends
};

using HeldCudaGradientsTest = Held<CudaGradientsTest>;

TEST_F(CudaGradientsTest, RecordHoldsTheGradientAndTheStepNumber) {
  start();
  capture(0);
  ASSERT_TRUE(engine_->wants_gradients());
  produce(7);
  ASSERT_EQ(engine_->add_gradient(gradient()).status, CKPT_OK);
  change_all();
  await(0);
  capture(1);
  await(1);
  EXPECT_EQ(recorded(0), std::nullopt) << "nothing came before it";
  EXPECT_EQ(recorded(1), 7);
  const auto bytes = agent_->record("rank0", CheckpointId(1, 1)).value();
  const auto record = arena::decode_record(bytes);
  EXPECT_EQ(record.base, CheckpointId(1, 0));
  ASSERT_TRUE(std::holds_alternative<arena::GradientRecord::CountedStep>(record.steps.at(0)));
  ASSERT_EQ(record.copied.size(), 1u) << "the number of the step";
  EXPECT_EQ(record.copied[0].piece_at, record.updated[0].count_at);
  EXPECT_EQ(bytes[record.copied[0].record_at], std::byte{1});
}

TEST_F(HeldCudaGradientsTest, ReadsAGradientInStreamOrderWithoutWaitingForTheGpu) {
  start();
  capture(0);
  await(0);
  buttons().hold(CKPT_DOUBLE_KERNEL, 1);
  produce(9);
  ASSERT_EQ(engine_->add_gradient(gradient()).status, CKPT_OK) << "and the GPU does nothing";
  change_all();
  buttons().hold(CKPT_DOUBLE_KERNEL, 0);
  capture(1);
  await(1);
  EXPECT_EQ(recorded(1), 9);
}

TEST_F(HeldCudaGradientsTest, TakesGradientsWhileTheGpuStillCopiesTheCheckpoint) {
  start(staging_for_all_bytes);
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  capture(0);
  EXPECT_EQ(engine_->stage(0), CKPT_STAGE_CAPTURING);
  EXPECT_TRUE(engine_->wants_gradients());
  produce(5);
  EXPECT_EQ(engine_->add_gradient(gradient()).status, CKPT_OK);
  change_all();
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  await(0);
  capture(1);
  await(1);
  EXPECT_EQ(recorded(1), 5);
}

TEST_F(HeldCudaGradientsTest, NextGradientsDoNotChangeARecordStillBeingCopied) { overwrite_a_record(); }

TEST_F(HeldCudaGradientsTest, NextGradientsDoNotChangeARecordStillInStaging) {
  overwrite_a_record(2 * staging_for_all_bytes);
}

TEST_F(HeldCudaGradientsTest, AllocatesMemoryForGradientsOnce) {
  start();
  std::uint64_t allocations = 0;
  for (std::int64_t k = 0; k < 5; ++k) {
    capture(k);
    await(k);
    ASSERT_EQ(engine_->add_gradient(gradient()).status, CKPT_OK);
    change_all();
    if (k == 2) allocations = buttons().allocations();
  }
  EXPECT_LE(buttons().allocations(), allocations);  // fewer if earlier memory is freed only now
}

TEST_F(HeldCudaGradientsTest, DoesNotRepeatTheUpdateWithoutGpuMemoryForGradients) {
  start();
  WarningLog warnings(*engine_);
  capture(0);
  await(0);
  buttons().free_bytes(1000);
  const Outcome outcome = engine_->add_gradient(gradient());
  EXPECT_EQ(outcome.status, CKPT_SKIPPED);
  EXPECT_THAT(outcome.text, HasSubstr("OUT_OF_MEMORY"));
  EXPECT_THAT(warnings.take(CKPT_WARNING_RECOMPUTE), HasSubstr("OUT_OF_MEMORY"));
  change_all();
  capture(1);
  await(1);
  EXPECT_EQ(recorded(1), std::nullopt);
  engine_->on_warning(nullptr, nullptr);
}

TEST_F(CudaGradientsTest, RefusesHostAddressesAndStreamsUnderGraphCapture) {
  start();
  capture(0);
  await(0);
  ckpt_gradient_t wrong = gradient();
  const std::vector<float> on_host(elements);
  wrong.data = on_host.data();
  EXPECT_THAT(caught([&] { engine_->add_gradient(wrong); }).sentence, HasSubstr("a gradient was registered as device"));
  capture(1);
  await(1);
  wrong = gradient();
  wrong.step_count = "m";
  EXPECT_THAT(caught([&] { engine_->add_gradient(wrong); }).sentence, HasSubstr("not one float32"));
  capture(2);
  await(2);
  ASSERT_CUDA(cuStreamBeginCapture(stream(), CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_THAT(caught([&] { engine_->add_gradient(gradient()); }).sentence, HasSubstr("while a CUDA graph is recorded"));
  CUgraph graph = nullptr;
  EXPECT_CUDA(cuStreamEndCapture(stream(), &graph));
}

TEST_F(CudaGradientsTest, WarnsOfGpuUpdatesThatAreNotRepeated) {
  start();
  ckpt_gradient_t decayed = gradient(), unfused = gradient();
  decayed.weight_decay = 0.1;
  unfused.is_unfused = 1;
  capture(0);
  await(0);
  const Outcome rounded_in_different_ways = engine_->add_gradient(decayed);
  EXPECT_EQ(rounded_in_different_ways.status, CKPT_SKIPPED);
  EXPECT_THAT(rounded_in_different_ways.text, HasSubstr("use AdamW"));
  capture(1);
  await(1);
  const Outcome with_factors_of_the_host = engine_->add_gradient(unfused);
  EXPECT_EQ(with_factors_of_the_host.status, CKPT_SKIPPED);
  EXPECT_THAT(with_factors_of_the_host.text, HasSubstr("only a fused Adam on a GPU"));
}

}  // namespace
}  // namespace ckpt::client
