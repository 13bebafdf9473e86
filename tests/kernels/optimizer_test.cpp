// Steps of optimizers: every instruction set's bytes against the portable ones, tails, in place or not, and digests.
// tests/process/test_optimizer.py compares the results with torch itself.
#include "kernels/optimizer.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda_power.hpp"
#include "kernels/digest.hpp"

namespace ckpt::kernels {
namespace {

using Values = std::vector<float>;

constexpr float infinity = std::numeric_limits<float>::infinity();

// Values of all magnitudes, with zeros, denormals and infinities among them.
Values random_values(std::uint64_t seed, std::size_t count, bool negative = true) {
  std::mt19937_64 random(seed);
  Values values(count);
  for (float& value : values) {
    const int exponent = static_cast<int>(random() % 80) - 60;
    value = std::ldexp(static_cast<float>(random() % 0x1000000), exponent - 24);
    if (random() % 32 == 0) value = 0;
    if (random() % 32 == 0) value = std::ldexp(1.0F + static_cast<float>(random() % 100), -148);
    if (random() % 64 == 0) value = infinity;
    if (negative && random() % 2 == 0) value = -value;
  }
  return values;
}

std::vector<Bfloat16> random_halves(std::uint64_t seed, std::size_t count) {
  std::vector<Bfloat16> halves;
  for (const float value : random_values(seed, count)) {
    halves.push_back({static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16)});
  }
  return halves;
}

std::vector<std::uint32_t> bits(const Values& values) {
  std::vector<std::uint32_t> all;
  for (const float value : values) {
    // Which of several NaNs comes out depends on the order of operands, which compilers choose.
    all.push_back(std::isnan(value) ? 0x7FC00000U : std::bit_cast<std::uint32_t>(value));
  }
  return all;
}

// The tensors of a state, and what a step makes of them.
struct State {
  std::vector<Values> tensors;

  State(std::uint64_t seed, std::size_t count, std::size_t tensors_count) {
    for (std::size_t i = 0; i < tensors_count; ++i) tensors.push_back(random_values(seed + i, count, i < 2));
  }
  StateTensor in_place(std::size_t i) { return {tensors[i].data(), tensors[i].data()}; }
  std::vector<std::vector<std::uint32_t>> all_bits() const {
    std::vector<std::vector<std::uint32_t>> all;
    for (const Values& values : tensors) all.push_back(bits(values));
    return all;
  }
};

constexpr TorchVariant variants[] = {
    {TorchForm::unfused, TorchCapability::standard}, {TorchForm::unfused, TorchCapability::avx2},
    {TorchForm::fused, TorchCapability::standard},   {TorchForm::fused, TorchCapability::avx2},
    {TorchForm::fused, TorchCapability::avx512},     {TorchForm::unfused, TorchCapability::cuda},
    {TorchForm::fused, TorchCapability::cuda}};

std::vector<AdamSettings> adam_settings() {
  std::vector<AdamSettings> all;
  for (const bool decoupled : {false, true}) {
    for (const double decay : {0.0, 0.01}) {
      for (const bool amsgrad : {false, true}) {
        all.push_back({.weight_decay = decay,
                       .decoupled_weight_decay = decoupled,
                       .amsgrad = amsgrad,
                       .maximize = amsgrad != decoupled});
      }
    }
  }
  all.push_back({.beta1 = 0.3});  // the lerp goes from the gradient
  return all;
}

std::vector<SgdSettings> sgd_settings() {
  return {{},
          {.weight_decay = 0.01, .maximize = true},
          {.momentum = 0.9},
          {.momentum = 0.9, .dampening = 0.25, .weight_decay = 0.01},
          {.momentum = 0.9, .weight_decay = 0.01, .nesterov = true}};
}

std::vector<std::size_t> sizes() {
  std::vector<std::size_t> all{1023, 4096, 5001};
  for (std::size_t size = 0; size <= 70; ++size) all.push_back(size);
  return all;
}

State after_adam(const AdamStep& step, State state, const Gradient& gradient, Isa isa) {
  update(step, AdamState{state.in_place(0), state.in_place(1), state.in_place(2), state.in_place(3)}, gradient, isa);
  return state;
}

State after_sgd(const SgdStep& step, State state, const Gradient& gradient, Isa isa) {
  update(step, SgdState{state.in_place(0), state.in_place(1)}, gradient, isa);
  return state;
}

TEST(Optimizer, EveryInstructionSetGivesThePortableBytesOfAdam) {
  for (const std::size_t size : sizes()) {
    const State state(size, size, 4);
    const Values gradient = random_values(size + 10, size);
    const std::vector<Bfloat16> halves = random_halves(size + 11, size);
    for (const AdamSettings& settings : adam_settings()) {
      for (const TorchVariant variant : variants) {
        const AdamStep step = adam_step(settings, 7, variant);
        const State floats = after_adam(step, state, gradient, Isa::portable);
        const State from_halves = after_adam(step, state, halves, Isa::portable);
        for (const Isa isa : supported_isas()) {
          ASSERT_EQ(after_adam(step, state, gradient, isa).all_bits(), floats.all_bits()) << name(isa) << " " << size;
          ASSERT_EQ(after_adam(step, state, halves, isa).all_bits(), from_halves.all_bits()) << name(isa);
        }
      }
    }
  }
}

TEST(Optimizer, EveryInstructionSetGivesThePortableBytesOfSgd) {
  for (const std::size_t size : sizes()) {
    const State state(size, size, 2);
    const Values gradient = random_values(size + 10, size);
    const std::vector<Bfloat16> halves = random_halves(size + 11, size);
    for (const SgdSettings& settings : sgd_settings()) {
      for (const TorchVariant variant : variants) {
        for (const bool first : {false, true}) {
          const SgdStep step = sgd_step(settings, first, variant);
          const State floats = after_sgd(step, state, gradient, Isa::portable);
          const State from_halves = after_sgd(step, state, halves, Isa::portable);
          for (const Isa isa : supported_isas()) {
            ASSERT_EQ(after_sgd(step, state, gradient, isa).all_bits(), floats.all_bits()) << name(isa) << " " << size;
            ASSERT_EQ(after_sgd(step, state, halves, isa).all_bits(), from_halves.all_bits()) << name(isa);
          }
        }
      }
    }
  }
}

// torch's fused kernel for GPUs, as its source has it.
TEST(Optimizer, FusedGpuAdamWStepMatchesTorchsKernel) {
  constexpr std::size_t size = 1003;
  const AdamSettings settings{
      .learning_rate = 0.01, .weight_decay = 0.1, .decoupled_weight_decay = true, .amsgrad = true};
  const State before(1, size, 4);
  const Values gradient = random_values(9, size);
  const AdamStep step = adam_step(settings, 102, {TorchForm::fused, TorchCapability::cuda});
  const auto rate = 0.01F, decay = 0.1F, beta1 = 0.9F, beta2 = 0.999F;
  const float size_of_step = rate / (1 - cuda_power(beta1, 102)), root = std::sqrt(1 - cuda_power(beta2, 102));
  State expected = before;
  for (std::size_t i = 0; i < size; ++i) {
    float &p = expected.tensors[0][i], &m = expected.tensors[1][i], &v = expected.tensors[2][i];
    const float g = gradient[i];
    p = std::fma(-(rate * decay), p, p);
    m = std::fma(beta1, m, std::fma(-beta1, g, g));
    v = std::fma(beta2, v, std::fma(-beta2, g * g, g * g));
    float& largest = expected.tensors[3][i];
    if (largest < v) largest = v;
    p -= size_of_step * m / (std::sqrt(largest) / root + 1e-8F);
  }
  for (const Isa isa : supported_isas())
    EXPECT_EQ(after_adam(step, before, gradient, isa).all_bits(), expected.all_bits()) << name(isa);
}

// Its kernels for lists of tensors, one after the other.
TEST(Optimizer, ForeachGpuAdamStepRoundsLikeTorchsKernels) {
  constexpr std::size_t size = 1003;
  const State before(1, size, 4);
  const Values gradient = random_values(9, size);
  const AdamStep step = adam_step({.weight_decay = 0.1}, 5, {TorchForm::unfused, TorchCapability::cuda});
  const auto rate = static_cast<float>(-(1e-3 / (1 - std::pow(0.9, 5))));
  const auto root = static_cast<float>(std::pow(1 - std::pow(0.999, 5), 0.5));
  State expected = before;
  for (std::size_t i = 0; i < size; ++i) {
    float &p = expected.tensors[0][i], &m = expected.tensors[1][i], &v = expected.tensors[2][i];
    const float g = std::fma(p, 0.1F, gradient[i]);
    m = std::fma(static_cast<float>(1 - 0.9), g - m, m);
    v = std::fma(static_cast<float>(1 - 0.999), g * g, v * 0.999F);
    p = std::fma(rate, m / (std::sqrt(v) / root + 1e-8F), p);
  }
  for (const Isa isa : supported_isas())
    EXPECT_EQ(after_adam(step, before, gradient, isa).all_bits(), expected.all_bits()) << name(isa);
}

// The same on all GPUs, fused or not.
TEST(Optimizer, GpuSgdStepRoundsLikeTorchsUnfusedAvx2Step) {
  const State state(1, 1003, 2);
  const Values gradient = random_values(9, 1003);
  for (const SgdSettings& settings : sgd_settings())
    for (const TorchForm form : {TorchForm::unfused, TorchForm::fused})
      EXPECT_EQ(
          after_sgd(sgd_step(settings, false, {form, TorchCapability::cuda}), state, gradient, best_isa()).all_bits(),
          after_sgd(sgd_step(settings, false, {TorchForm::unfused, TorchCapability::avx2}), state, gradient, best_isa())
              .all_bits());
}

TEST(Optimizer, TreatsBfloat16GradientsAsTheirFloats) {
  constexpr std::size_t size = 333;
  const State state(1, size, 4);
  const std::vector<Bfloat16> halves = random_halves(2, size);
  Values floats;
  for (const Bfloat16 half : halves) floats.push_back(std::bit_cast<float>(std::uint32_t{half.bits} << 16));
  const AdamStep step = adam_step({}, 3, {TorchForm::unfused, TorchCapability::avx2});
  for (const Isa isa : supported_isas()) {
    EXPECT_EQ(after_adam(step, state, halves, isa).all_bits(), after_adam(step, state, floats, isa).all_bits());
  }
}

TEST(Optimizer, KeepsTensorsThatTheStepDoesNotUse) {
  constexpr std::size_t size = 100;
  const State state(1, size, 4);
  const Values gradient = random_values(2, size);
  const AdamStep adam = adam_step({.amsgrad = false}, 3, variants[0]);
  const SgdStep sgd = sgd_step({.momentum = 0}, false, variants[0]);
  EXPECT_EQ(bits(after_adam(adam, state, gradient, best_isa()).tensors[3]), bits(state.tensors[3]));
  EXPECT_EQ(bits(after_sgd(sgd, state, gradient, best_isa()).tensors[1]), bits(state.tensors[1]));
}

// The first step's momentum may be memory that was never written.
TEST(Optimizer, FirstMomentumStepIgnoresTheOldMomentum) {
  constexpr std::size_t size = 100;
  State state(1, size, 2), other = state;
  other.tensors[1].assign(size, std::numeric_limits<float>::quiet_NaN());
  const Values gradient = random_values(2, size);
  const SgdStep step = sgd_step({.momentum = 0.9}, true, variants[1]);
  EXPECT_EQ(after_sgd(step, state, gradient, best_isa()).all_bits(),
            after_sgd(step, other, gradient, best_isa()).all_bits());
}

// A tensor of a piece before and after a step, in memory of its own, with guards around what is written.
class Piece {
 public:
  Piece(const Values& before, std::size_t offset_bytes, std::size_t rest_bytes)
      : before_(before), offset_(offset_bytes / sizeof(float)), size_bytes_(4 * before.size()) {
    memory_.assign(offset_ + before.size() + rest_bytes / sizeof(float), guard);
    digests_.assign(leaf_count(4 * memory_.size()), untouched);
  }
  StateTensor tensor() {
    return {before_.data(), memory_.data() + offset_, digests_.data(), 4 * offset_, 4 * memory_.size()};
  }
  Values after() const {
    const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(offset_);
    return {begin, begin + static_cast<std::ptrdiff_t>(before_.size())};
  }
  const Values& before() const { return before_; }

  bool guards_intact() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if ((i < offset_ || i >= offset_ + before_.size()) && memory_[i] != guard) return false;
    }
    return true;
  }
  // Whole leaves have the digest of what was written, and the digests of others are as before.
  void expect_digests() const {
    std::vector<std::uint64_t> expected(digests_.size());
    digest_leaves(memory_.data(), 4 * memory_.size(), expected.data());
    const LeafRange whole = whole_leaves(4 * offset_, size_bytes_, 4 * memory_.size());
    for (std::size_t leaf = 0; leaf < digests_.size(); ++leaf) {
      const bool is_whole = leaf >= whole.first && leaf < whole.last;
      EXPECT_EQ(digests_[leaf], is_whole ? expected[leaf] : untouched) << "leaf " << leaf;
    }
  }

 private:
  static constexpr float guard = 123.25F;
  static constexpr std::uint64_t untouched = 42;
  Values before_;
  std::size_t offset_;
  std::size_t size_bytes_;
  Values memory_;
  std::vector<std::uint64_t> digests_;
};

// With sizes around a leaf's 16384 floats, at offsets on and off its grid, alone in the piece or not.
TEST(Optimizer, DigestsOfWholeLeavesMatchTheResult) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{50}, std::size_t{60}, std::size_t{16383},
                                 std::size_t{16384}, std::size_t{16400}, std::size_t{40001}}) {
    for (const std::size_t offset : {0, 4, 64, 65528, 65536, 70000}) {
      for (const std::size_t rest : {0, 4, 65536}) {
        std::vector<Piece> pieces;
        for (std::size_t i = 0; i < 4; ++i) {
          pieces.emplace_back(random_values(size + i, size, i < 2), offset + 4 * i * (offset % 3), rest);
        }
        const Values gradient = random_values(size + 9, size);
        const AdamStep step = adam_step({.amsgrad = true}, 5, variants[4]);
        State expected(size, size, 4);
        for (std::size_t i = 0; i < 4; ++i) expected.tensors[i] = pieces[i].before();
        update(step, AdamState{pieces[0].tensor(), pieces[1].tensor(), pieces[2].tensor(), pieces[3].tensor()},
               gradient);
        expected = after_adam(step, expected, gradient, Isa::portable);
        for (std::size_t i = 0; i < 4; ++i) {
          EXPECT_EQ(bits(pieces[i].after()), bits(expected.tensors[i]));
          EXPECT_TRUE(pieces[i].guards_intact());
          pieces[i].expect_digests();
        }
      }
    }
  }
}

TEST(Optimizer, DigestsOnlyRequestedTensors) {
  constexpr std::size_t size = 20000;
  Piece parameter(random_values(1, size), 0, 0);
  Values momentum = random_values(2, size);
  const Values gradient = random_values(3, size);
  const SgdStep step = sgd_step({.momentum = 0.9}, false, variants[0]);
  update(step, SgdState{parameter.tensor(), {momentum.data(), momentum.data()}}, gradient);
  parameter.expect_digests();
}

TEST(Optimizer, WholeLeavesLieWithinTheTensorOrEndThePiece) {
  const auto expect = [](LeafRange range, std::size_t first, std::size_t last) {
    EXPECT_EQ(range.first, first);
    EXPECT_EQ(range.last, last);
  };
  constexpr std::size_t leaf = leaf_size_bytes;
  expect(whole_leaves(0, 0, 0), 0, 0);
  expect(whole_leaves(0, 10, 10), 0, 1);
  expect(whole_leaves(0, 10, 20), 0, 0);
  expect(whole_leaves(0, leaf, leaf + 4), 0, 1);
  expect(whole_leaves(4, leaf, 2 * leaf), 1, 1);
  expect(whole_leaves(4, 2 * leaf, 2 * leaf + 4), 1, 3);
  expect(whole_leaves(leaf, leaf + 4, 3 * leaf), 1, 2);
}

// The arithmetic of torch's vectors and of what they leave over differs in some variants, so it matters where a tensor
// ends.
TEST(Optimizer, ShiftedTensorsAgreeForTheSameArithmetic) {
  constexpr std::size_t size = 200;
  const State state(1, size, 4);
  const Values gradient = random_values(2, size);
  const AdamStep step = adam_step({}, 3, {TorchForm::unfused, TorchCapability::avx2});
  const State whole = after_adam(step, state, gradient, best_isa());
  for (std::size_t cut = 1; cut < 40; ++cut) {
    State halves = state;
    const auto part = [&](std::size_t begin, std::size_t end) {
      AdamState tensors;
      StateTensor* const all[] = {&tensors.parameter, &tensors.first_moment, &tensors.second_moment};
      for (std::size_t i = 0; i < 3; ++i)
        *all[i] = {halves.tensors[i].data() + begin, halves.tensors[i].data() + begin};
      update(step, tensors, std::span<const float>(gradient).subspan(begin, end - begin));
    };
    part(0, cut);
    part(cut, size);
    ASSERT_EQ(halves.all_bits(), whole.all_bits()) << cut;
  }
}

}  // namespace
}  // namespace ckpt::kernels
