#include "kernels/optimizer.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cuda_power.hpp"
#include "kernels/digest.hpp"
#include "kernels/leaf_hasher.hpp"
#include "kernels/update_loops.hpp"

namespace ckpt::kernels {

namespace {

// Elements between two digests: what is written stays in the nearest caches until it is digested.
constexpr std::size_t block_elements = 256;

const UpdateLoops& update_loops(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (isa == Isa::avx512) return avx512_update;
  if (isa == Isa::avx2 && __builtin_cpu_supports("fma")) return avx2_update;
#endif
  static_cast<void>(isa);
  return portable_update;
}

// torch's source has the same operations in the same order everywhere. Its build for AVX2 may contract a product and a
// sum, and in the fused kernels GCC does so differently in vectors and in the loop for the rest. Where AVX-512 is
// available, torch still runs the AVX2 build of these kernels, or one that rounds alike. On a GPU, torch
// rounds all elements in the same way. The source of its fused kernel says where an FMA is used.
Arithmetic torch_arithmetic(TorchVariant variant) {
  constexpr std::size_t vector_elements = 8;
  const bool is_fused = variant.form == TorchForm::fused;
  if (variant.capability == TorchCapability::cuda) {
    const Rounding rounding = is_fused ? Rounding::gpu_fused : Rounding::gpu;
    return {rounding, rounding, is_fused, is_fused, 1};
  }
  const bool contracted = variant.capability != TorchCapability::standard;
  const Rounding vectors = contracted ? Rounding::fused : Rounding::separate;
  if (!is_fused) return {vectors, vectors, false, false, 1};
  return {vectors, contracted ? Rounding::fused_decay : Rounding::separate, false, true, vector_elements};
}

float rounded(double value) { return static_cast<float>(value); }

// On a GPU, torch's fused kernel computes the factors of the step in float32. On the host, torch computes them in
// double, which gives other bits.
void correct_as_gpu(AdamStep& factors, const AdamSettings& settings, float step) {
  const float rate = rounded(settings.learning_rate);
  factors.shrink = -(rate * rounded(settings.weight_decay));
  factors.negative_rate = -(rate / (1 - cuda_power(factors.beta1, step)));
  factors.root_divisor = std::sqrt(1 - cuda_power(factors.beta2, step));
}

// Digests a tensor's leaves while the tensor is written from its beginning to its end.
class LeafDigester {
 public:
  LeafDigester(const StateTensor& tensor, std::size_t size_bytes, const StripeLoops& loops)
      : tensor_(&tensor), loops_(&loops) {
    if (tensor.digests == nullptr) return;
    leaves_ = whole_leaves(tensor.offset_bytes, size_bytes, tensor.piece_bytes);
  }

  // Call after the tensor's first `written_bytes` are written.
  void catch_up(std::size_t written_bytes) {
    for (; leaves_.first < leaves_.last; ++leaves_.first) {
      const std::size_t begin = leaves_.first * leaf_size_bytes - tensor_->offset_bytes;
      if (written_bytes <= begin) return;
      const auto* leaf = reinterpret_cast<const std::byte*>(tensor_->after) + begin;
      const std::size_t length = leaf_length(tensor_->piece_bytes, leaves_.first);
      digest_stripes(leaf, length, written_bytes - begin);
      if (written_bytes - begin < length) return;
      finish(leaf, length);
    }
  }

 private:
  void digest_stripes(const std::byte* leaf, std::size_t length, std::size_t written_bytes) {
    const std::size_t due = std::min(whole_stripes(length), written_bytes / stripe_size_bytes);
    loops_->digest(hasher_.accumulators, digested_, leaf + digested_ * stripe_size_bytes, due - digested_);
    digested_ = due;
  }

  void finish(const std::byte* leaf, std::size_t length) {
    tensor_->digests[leaves_.first] = length <= short_leaf_max_bytes
                                          ? short_leaf_digest(leaf, length)
                                          : hasher_.finish(leaf + length - stripe_size_bytes, length);
    hasher_ = LeafHasher{};
    digested_ = 0;
  }

  const StateTensor* tensor_;
  const StripeLoops* loops_;
  LeafRange leaves_{0, 0};  // that are not finished; the first may have begun
  LeafHasher hasher_;
  std::size_t digested_ = 0;  // stripes of the first
};

template <typename Element>
Run<Element> run_of(std::span<const StateTensor> tensors, const Element* gradient, std::size_t at, std::size_t end) {
  Run<Element> run{gradient + at, {}, {}, end - at};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].before != nullptr) run.before[i] = tensors[i].before + at;
    if (tensors[i].after != nullptr) run.after[i] = tensors[i].after + at;
  }
  return run;
}

// Calls work(begin, end, way) for consecutive blocks of the tensor's elements.
template <typename Work>
void for_blocks(const Arithmetic& arithmetic, std::size_t elements, std::size_t block, Work work) {
  const std::size_t in_vectors = elements - elements % arithmetic.vector_elements;
  for (std::size_t at = 0; at < elements;) {
    const bool whole = at < in_vectors;
    const std::size_t end = std::min(whole ? in_vectors : elements, at + block);
    work(at, end,
         whole ? Way{arithmetic.vectors, arithmetic.vectors_forget_nan}
               : Way{arithmetic.rest, arithmetic.rest_forgets_nan});
    at = end;
  }
}

template <typename Step, typename Element>
void update_tensors(const Step& step, std::array<StateTensor, max_state_tensors> tensors,
                    std::span<const Element> gradient, void (*loop)(const Step&, Way, const Run<Element>&), Isa isa) {
  const auto digested = [](const StateTensor& tensor) { return tensor.digests != nullptr; };
  if (std::none_of(tensors.begin(), tensors.end(), digested)) {
    for_blocks(step.arithmetic, gradient.size(), gradient.size(), [&](auto begin, auto end, Way way) {
      loop(step, way, run_of<Element>(tensors, gradient.data(), begin, end));
    });
    return;
  }
  const StripeLoops& stripes = stripe_loops(isa);
  std::array<LeafDigester, max_state_tensors> digesters{
      LeafDigester{tensors[0], gradient.size() * sizeof(float), stripes},
      LeafDigester{tensors[1], gradient.size() * sizeof(float), stripes},
      LeafDigester{tensors[2], gradient.size() * sizeof(float), stripes},
      LeafDigester{tensors[3], gradient.size() * sizeof(float), stripes}};
  for_blocks(step.arithmetic, gradient.size(), block_elements, [&](auto begin, auto end, Way way) {
    loop(step, way, run_of<Element>(tensors, gradient.data(), begin, end));
    for (LeafDigester& digester : digesters) digester.catch_up(end * sizeof(float));
  });
}

}  // namespace

LeafRange whole_leaves(std::size_t offset_bytes, std::size_t size_bytes, std::size_t piece_bytes) {
  const std::size_t end = offset_bytes + size_bytes;
  const std::size_t first = leaf_count(offset_bytes);
  const std::size_t last = end == piece_bytes ? leaf_count(end) : end / leaf_size_bytes;
  return {first, std::max(first, last)};
}

AdamStep adam_step(const AdamSettings& settings, double step, TorchVariant variant) {
  const double lr = settings.learning_rate, decay = settings.weight_decay;
  const double bias1 = 1 - std::pow(settings.beta1, step), bias2 = 1 - std::pow(settings.beta2, step);
  const bool fused = variant.form == TorchForm::fused;
  const float weight = rounded(1 - settings.beta1);
  const bool from_gradient = !(std::abs(weight) < 0.5F);
  AdamStep factors{.arithmetic = torch_arithmetic(variant),
                   .shrink = rounded(1 - lr * decay),
                   .weight_decay = rounded(decay),
                   .beta1 = rounded(settings.beta1),
                   .lerp = from_gradient ? weight - 1 : weight,
                   .beta2 = rounded(settings.beta2),
                   .square = rounded(1 - settings.beta2),
                   .root_divisor = rounded(fused ? std::sqrt(bias2) : std::pow(bias2, 0.5)),
                   .epsilon = rounded(settings.epsilon),
                   .negative_rate = rounded(-(lr / bias1)),
                   .shrinks = decay != 0 && settings.decoupled_weight_decay,
                   .decays = decay != 0 && !settings.decoupled_weight_decay,
                   .lerp_from_gradient = from_gradient,
                   .amsgrad = settings.amsgrad,
                   .maximize = settings.maximize};
  if (factors.arithmetic.vectors == Rounding::gpu_fused) correct_as_gpu(factors, settings, static_cast<float>(step));
  return factors;
}

SgdStep sgd_step(const SgdSettings& settings, bool first, TorchVariant variant) {
  return {.arithmetic = torch_arithmetic(variant),
          .weight_decay = rounded(settings.weight_decay),
          .momentum = rounded(settings.momentum),
          .undamped = rounded(1 - settings.dampening),
          .negative_rate = rounded(-settings.learning_rate),
          .decays = settings.weight_decay != 0,
          .has_momentum = settings.momentum != 0,
          .first = first,
          .nesterov = settings.nesterov,
          .maximize = settings.maximize};
}

void update(const AdamStep& step, const AdamState& state, const Gradient& gradient, Isa isa) {
  const UpdateLoops& loops = update_loops(isa);
  const std::array tensors{state.parameter, state.first_moment, state.second_moment,
                           step.amsgrad ? state.largest_second_moment : StateTensor{}};
  if (const auto* floats = std::get_if<std::span<const float>>(&gradient)) {
    update_tensors(step, tensors, *floats, loops.adam, isa);
  } else {
    update_tensors(step, tensors, std::get<std::span<const Bfloat16>>(gradient), loops.adam_bfloat16, isa);
  }
}

void update(const SgdStep& step, const SgdState& state, const Gradient& gradient, Isa isa) {
  const UpdateLoops& loops = update_loops(isa);
  std::array tensors{state.parameter, step.has_momentum ? state.momentum : StateTensor{}, StateTensor{}, StateTensor{}};
  if (step.first) tensors[1].before = nullptr;
  if (const auto* floats = std::get_if<std::span<const float>>(&gradient)) {
    update_tensors(step, tensors, *floats, loops.sgd, isa);
  } else {
    update_tensors(step, tensors, std::get<std::span<const Bfloat16>>(gradient), loops.sgd_bfloat16, isa);
  }
}

}  // namespace ckpt::kernels
