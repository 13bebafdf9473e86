// What an update needs to be repeated is captured beside the piece after it, and only if it is all there is to know.
#include "client/gradient_capture.hpp"

#include <cstring>

#include "engine_fixture.hpp"

namespace ckpt::client {
namespace {

using testing::HasSubstr;

constexpr std::int64_t elements = 40'000;

class GradientCaptureTest : public EngineTest {
 protected:
  GradientCaptureTest() {
    for (const char* name : {"p", "m", "v"}) tensors_.push_back(test_tensor(name, CKPT_F32, {elements}));
    tensors_.push_back(test_tensor("rest", CKPT_U8, {31}));
    tensors_.push_back(test_tensor("own", CKPT_U8, {5}, CKPT_SYNCHRONOUS));
    for (auto& tensor : tensors_) tensor.fill(1);
    gradient_.resize(elements, 0.25F);
  }
  void start(const OptionPairs& more = {{"protection", "recompute(2)"}}) {
    engine_ = host_engine(more);
    register_all(*engine_, tensors_);
    restore(*engine_);
  }
  void capture(std::int64_t iteration) {
    ASSERT_EQ(engine_->snapshot(iteration).status, CKPT_OK);
    ASSERT_EQ(engine_->before_update().status, CKPT_OK);
    agent_->grant();
  }
  ckpt_gradient_t gradient() const {
    ckpt_gradient_t gradient = CKPT_GRADIENT_INIT;
    gradient.parameter = "p", gradient.first_moment = "m", gradient.second_moment = "v";
    gradient.data = gradient_.data();
    gradient.elements = elements;
    gradient.step = 3, gradient.learning_rate = 1e-3, gradient.beta1 = 0.9, gradient.beta2 = 0.999;
    gradient.epsilon = 1e-8, gradient.cpu_has_fma = 1;
    return gradient;
  }
  void update() {
    for (auto& tensor : tensors_) tensor.fill(++updates_);
  }
  std::optional<std::vector<std::byte>> record(std::int64_t iteration) {
    return agent_->record("rank0", CheckpointId(1, iteration));
  }

  std::vector<TestTensor> tensors_;
  std::vector<float> gradient_;
  std::unique_ptr<Engine> engine_;
  std::uint64_t updates_ = 1;
};

TEST_F(GradientCaptureTest, RecordHoldsGradientsFactorsAndStateOutsideTheStep) {
  start();
  capture(0);
  ASSERT_TRUE(engine_->wants_gradients());
  ASSERT_EQ(engine_->add_gradient(gradient()).status, CKPT_OK);
  update();
  gradient_.assign(elements, 0);  // the next backward pass
  capture(1);
  EXPECT_FALSE(record(0)) << "nothing came before it";
  const auto bytes = record(1);
  ASSERT_TRUE(bytes);
  const auto found = arena::decode_record(*bytes);
  EXPECT_EQ(found.base, CheckpointId(1, 0));
  EXPECT_EQ(found.checkpoint, CheckpointId(1, 1));
  ASSERT_EQ(found.updated.size(), 1u);
  float first = 0;
  std::memcpy(&first, bytes->data() + found.updated[0].gradient_at, sizeof(first));
  EXPECT_EQ(first, 0.25F);
  ASSERT_EQ(found.copied.size(), 1u);
  EXPECT_EQ(std::memcmp(bytes->data() + found.copied[0].record_at, tensors_[3].bytes.data(), 31), 0);
  for (const auto& tensor : tensors_) EXPECT_EQ(stored(tensor.name, CheckpointId(1, 1)), tensor.bytes) << tensor.name;
}

TEST_F(GradientCaptureTest, SgdStepHasAMomentumAndNoSecondMoment) {
  std::erase_if(tensors_, [](const TestTensor& tensor) { return tensor.name == "v"; });
  start();
  capture(0);
  ckpt_gradient_t given = gradient();
  given.optimizer = CKPT_SGD, given.is_unfused = 1, given.momentum = 0.5, given.dampening = 0.25;
  given.first_moment = "m", given.second_moment = nullptr;
  ASSERT_EQ(engine_->add_gradient(given).status, CKPT_OK);
  update();
  capture(1);
  const auto bytes = record(1);
  ASSERT_TRUE(bytes);
  const auto found = arena::decode_record(*bytes);
  ASSERT_TRUE(std::holds_alternative<kernels::SgdStep>(found.steps.at(0)));
  const auto& step = std::get<kernels::SgdStep>(found.steps[0]);
  EXPECT_EQ(step.momentum, 0.5F);
  EXPECT_EQ(step.undamped, 0.75F);
  EXPECT_FALSE(step.first);
  EXPECT_EQ(step.arithmetic.vectors, kernels::Rounding::fused);
  EXPECT_EQ(step.arithmetic.vector_elements, 1u);
}

// The square root is not the processor's.
TEST_F(GradientCaptureTest, WarnsThatUnfusedAdamOnACpuIsNotRepeated) {
  start();
  WarningLog warnings(*engine_);
  capture(0);
  ckpt_gradient_t unfused = gradient();
  unfused.is_unfused = 1;
  EXPECT_EQ(engine_->add_gradient(unfused).status, CKPT_SKIPPED);
  EXPECT_THAT(warnings.take(CKPT_WARNING_RECOMPUTE), HasSubstr("give Adam fused=True"));
  update();
  capture(1);
  EXPECT_FALSE(record(1));
}

TEST_F(GradientCaptureTest, RefusesAGradientOnAGpuIfNoTensorIsThere) {
  start();
  capture(0);
  ckpt_gradient_t elsewhere = gradient();
  elsewhere.memory = CKPT_DEVICE;
  EXPECT_EQ(caught([&] { engine_->add_gradient(elsewhere); }).status, CKPT_ERR_INVALID);
}

TEST_F(GradientCaptureTest, EachCheckpointHoldsTheRecordOfItsOwnUpdate) {
  start();
  capture(0);
  for (std::int64_t k = 1; k < 6; ++k) {
    gradient_.assign(elements, static_cast<float>(k));
    ASSERT_EQ(engine_->add_gradient(gradient()).status, CKPT_OK);
    update();
    capture(k);
    const auto bytes = record(k);
    ASSERT_TRUE(bytes);
    float first = 0;
    std::memcpy(&first, bytes->data() + arena::decode_record(*bytes).updated[0].gradient_at, sizeof(first));
    EXPECT_EQ(first, static_cast<float>(k));
  }
}

TEST_F(GradientCaptureTest, AnUpdateAfterASkippedSnapshotHasNoRecord) {
  start();
  capture(0);
  ASSERT_EQ(engine_->add_gradient(gradient()).status, CKPT_OK);
  update();
  agent_->control().resume_at(2);
  EXPECT_EQ(engine_->snapshot(1).status, CKPT_SKIPPED);
  EXPECT_EQ(engine_->before_update().status, CKPT_OK);
  EXPECT_FALSE(engine_->wants_gradients());
  EXPECT_EQ(engine_->add_gradient(gradient()).status, CKPT_OK) << "it does nothing";
  update();
  capture(2);
  EXPECT_FALSE(record(2));
}

TEST_F(GradientCaptureTest, TwoUpdatesInOneIterationHaveNoRecord) {
  start();
  capture(0);
  ASSERT_EQ(engine_->add_gradient(gradient()).status, CKPT_OK);
  update();
  EXPECT_EQ(engine_->before_update().status, CKPT_OK);
  const Caught second = caught([&] { engine_->add_gradient(gradient()); });
  EXPECT_EQ(second.status, CKPT_ERR_INVALID);
  EXPECT_THAT(second.sentence, HasSubstr("given for two gradients of one update"));
  update();
  capture(1);
  EXPECT_FALSE(record(1));
}

TEST_F(GradientCaptureTest, TakesNoGradientsWithoutTheOption) {
  start({{"protection", "copies(2)"}});
  capture(0);
  EXPECT_FALSE(engine_->wants_gradients());
  EXPECT_EQ(engine_->add_gradient(gradient()).status, CKPT_OK);
  update();
  capture(1);
  EXPECT_FALSE(record(1));
}

TEST_F(GradientCaptureTest, RefusesAMismatchedGradientAndTakesNoRecord) {
  start();
  capture(0);
  const auto sentence = [&](auto change) {
    ckpt_gradient_t wrong = gradient();
    change(wrong);
    return caught([&] { engine_->add_gradient(wrong); }).sentence;
  };
  EXPECT_THAT(sentence([](auto& g) { g.first_moment = "other"; }), HasSubstr("\"other\", which is not registered"));
  capture(1);
  EXPECT_THAT(sentence([](auto& g) { g.elements = 5; }), HasSubstr("not float32 with as many"));
  capture(2);
  EXPECT_THAT(sentence([](auto& g) { g.second_moment = "own"; }), HasSubstr("not registered with capture"));
  ASSERT_EQ(engine_->add_gradient(gradient()).status, CKPT_OK) << "it does nothing any more";
  capture(3);
  EXPECT_FALSE(record(3));
}

TEST_F(GradientCaptureTest, WarnsOnceThatGradientsOfThisTypeAreNotRepeated) {
  start();
  WarningLog warnings(*engine_);
  for (std::int64_t k = 0; k < 3; ++k) {
    capture(k);
    ckpt_gradient_t half = gradient();
    half.dtype = CKPT_F16;
    EXPECT_EQ(engine_->add_gradient(half).status, CKPT_SKIPPED);
  }
  const std::string told = warnings.take(CKPT_WARNING_RECOMPUTE);
  EXPECT_THAT(told, HasSubstr("neither float32 nor bfloat16"));
  EXPECT_EQ(told.find("neither"), told.rfind("neither"));
}

TEST_F(GradientCaptureTest, SkipsARecordLongerThanHalfTheStateAndWarnsOnce) {
  tensors_.push_back(test_tensor("frozen", CKPT_U8, {3 * elements * 4}));
  tensors_.back().fill(1);
  start();
  WarningLog warnings(*engine_);
  for (std::int64_t k = 0; k < 3; ++k) {
    capture(k);
    ASSERT_EQ(engine_->add_gradient(gradient()).status, CKPT_OK);
    update();
    EXPECT_FALSE(record(k));
  }
  const std::string told = warnings.take(CKPT_WARNING_RECOMPUTE);
  EXPECT_THAT(told, HasSubstr("more than half of the state"));
  EXPECT_EQ(told.find("half"), told.rfind("half"));
}

TEST_F(GradientCaptureTest, DeferredCaptureAlsoHoldsTheRecord) {
  start();
  ASSERT_EQ(engine_->snapshot(0).status, CKPT_OK);
  ASSERT_EQ(engine_->before_update().status, CKPT_OK);
  ASSERT_EQ(engine_->add_gradient(gradient()).status, CKPT_OK);
  update();
  ASSERT_EQ(engine_->snapshot(1).status, CKPT_OK) << "no slot is free";
  EXPECT_EQ(engine_->stage(1), CKPT_STAGE_NONE);
  agent_->grant();
  ASSERT_EQ(engine_->before_update().status, CKPT_OK);
  EXPECT_TRUE(record(1));
}

}  // namespace
}  // namespace ckpt::client
