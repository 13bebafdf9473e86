// Repeats one step of torch.optim's AdamW, Adam or SGD bit for bit as torch computes it on a CPU or a GPU, and digests
// the result in the same pass. So a node that has a checkpoint and the next gradient can compute the next checkpoint,
// and compare its digest with the one that the trainer computed, to prove that both are the same. docs/mechanisms.md
// says which steps can be repeated.
//
// Parameters and states are float32; gradients are float32 or bfloat16. A call covers one whole tensor of the
// optimizer, as torch's does, because torch may round the last elements differently. If training clips or unscales
// gradients, pass them as they are after that.
//
// Thread-safe and without state. Nothing is allocated, and no pointer is kept. All instruction sets give the same
// bytes. The calling thread rounds to nearest and keeps denormals (MXCSR as a process starts with), as torch does by
// default.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "kernels/isa.hpp"

namespace ckpt::kernels {

// Which of torch's implementations computed the step. `unfused` is both foreach=True and foreach=False: they give the
// same bits. After an unfused Adam step on a CPU, the moments can always be repeated bit for bit. The parameter can be
// repeated only if torch.sqrt() rounds correctly there, which depends on the processor.
enum class TorchForm : std::uint8_t { unfused, fused };

// Where torch computed the step. On a CPU, what torch.backends.cpu.get_cpu_capability() returns there: DEFAULT, AVX2 or
// AVX512. `cuda`: on a GPU, with torch 2.11 or newer.
enum class TorchCapability : std::uint8_t { standard, avx2, avx512, cuda };

struct TorchVariant {
  TorchForm form;
  TorchCapability capability;
};

// How `x * a + y` rounds where an optimizer computes it.
enum class Rounding : std::uint8_t {
  separate,     // the product is rounded, then the sum
  fused,        // only the sum is rounded. Of moment * a + gradient * b, moment * a is rounded first
  fused_decay,  // as `fused`, but of moment * a + gradient * b, gradient * b is rounded first
  gpu,          // as `fused`, but Adam rounds the square of the gradient, and moment / divisor, first
  gpu_fused     // Adam computes moment * a + gradient * (1 - a) with two FMAs. Otherwise as `fused`
};

// torch computes a tensor in whole vectors. It may round the elements after the last whole vector (the rest)
// differently.
struct Arithmetic {
  Rounding vectors;
  Rounding rest;
  // There, amsgrad's largest second moment does not change if the second moment is NaN.
  bool vectors_forget_nan;
  bool rest_forgets_nan;
  std::size_t vector_elements;

  bool operator==(const Arithmetic&) const = default;
};

// The hyperparameters of a parameter group, as torch.optim.Adam and AdamW name them.
struct AdamSettings {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  bool decoupled_weight_decay = false;  // true: AdamW
  bool amsgrad = false;
  bool maximize = false;

  bool operator==(const AdamSettings&) const = default;
};

struct SgdSettings {
  double learning_rate = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
};

// One step's factors, as torch rounds them. They depend on the C library's pow(). So a node that repeats a step must
// use the factors that the trainer computed for it.
struct AdamStep {
  Arithmetic arithmetic;
  float shrink;        // factor of the parameter: 1 - learning rate * weight decay. With gpu_fused: what is added to 1
  float weight_decay;  // the parameter times this is added to the gradient
  float beta1;         // with gpu_fused alone
  float lerp;          // the new first moment is the old one, or the gradient, plus lerp * (gradient - old one)
  float beta2;
  float square;        // 1 - beta2
  float root_divisor;  // sqrt(1 - beta2^step)
  float epsilon;
  float negative_rate;      // - learning rate / (1 - beta1^step)
  bool shrinks;             // true: weight decay is decoupled and not 0, so `shrink` is used
  bool decays;              // true: weight decay is not decoupled and not 0, so `weight_decay` is used
  bool lerp_from_gradient;  // true: `lerp` is used with the gradient; false: with the old first moment
  bool amsgrad;
  bool maximize;

  bool operator==(const AdamStep&) const = default;
};

struct SgdStep {
  Arithmetic arithmetic;
  float weight_decay;
  float momentum;
  float undamped;  // 1 - dampening
  float negative_rate;
  bool decays;
  bool has_momentum;
  bool first;  // true in the first step: the momentum becomes the gradient, and the momentum's `before` is not read
  bool nesterov;
  bool maximize;

  bool operator==(const SgdStep&) const = default;
};

// Return the factors of one step. `step` is torch's state["step"] after the step: 1 for the first. `first`: true for
// the first step. torch's fused Adam for GPUs may not round coupled weight decay alike in all elements, so this step
// cannot be repeated: `weight_decay` is 0, or decoupled.
AdamStep adam_step(const AdamSettings& settings, double step, TorchVariant variant);
SgdStep sgd_step(const SgdSettings& settings, bool first, TorchVariant variant);

// The upper half of a float32.
struct Bfloat16 {
  std::uint16_t bits;
};
// A bfloat16 gradient is converted to float32 before it is used, as torch does. The conversion is exact.
using Gradient = std::variant<std::span<const float>, std::span<const Bfloat16>>;

// One tensor of the state: the parameter, or a moment. Both pointers are to as many elements as the gradient has.
// `after` is the same pointer as `before`, or does not overlap the gradient or any `before`.
struct StateTensor {
  const float* before = nullptr;
  float* after = nullptr;

  // Where `after` lies in its piece. Needed only to digest leaves. The step writes the digests of all leaves that are
  // whole within the tensor (whole_leaves()). The caller digests a leaf that several tensors share, once all these
  // tensors are written.
  std::uint64_t* digests = nullptr;  // where the digest of the piece's leaf 0 goes; null: nothing is digested
  std::size_t offset_bytes = 0;
  std::size_t piece_bytes = 0;
};

struct AdamState {
  StateTensor parameter, first_moment, second_moment;
  StateTensor largest_second_moment;  // for amsgrad alone
};
struct SgdState {
  StateTensor parameter;
  StateTensor momentum;  // if has_momentum
};

// Compute one step of the optimizer for one tensor.
void update(const AdamStep& step, const AdamState& state, const Gradient& gradient, Isa isa = best_isa());
void update(const SgdStep& step, const SgdState& state, const Gradient& gradient, Isa isa = best_isa());

// Returns the leaves [first, last) of a piece of `piece_bytes` bytes that lie completely within a tensor. The tensor
// has `size_bytes` bytes, and begins at `offset_bytes` in the piece.
struct LeafRange {
  std::size_t first;
  std::size_t last;
};
LeafRange whole_leaves(std::size_t offset_bytes, std::size_t size_bytes, std::size_t piece_bytes);

}  // namespace ckpt::kernels
