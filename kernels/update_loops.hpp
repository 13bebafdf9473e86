// Declares the inner loops of an optimizer's step for each instruction set. Each set has its own loops, in its own
// source file. update_loops(Isa) chooses among them. Internal to kernels/.
#pragma once

#include <cstddef>

#include "kernels/optimizer.hpp"

namespace ckpt::kernels {

inline constexpr std::size_t max_state_tensors = 4;

// A range of elements, the same range in all tensors that a step reads and writes. The tensors are in the order of
// AdamState or SgdState. A tensor that the step does not use is null.
template <typename Element>
struct Run {
  const Element* gradient;
  const float* before[max_state_tensors];
  float* after[max_state_tensors];
  std::size_t count;
};

// How the loops round in a run.
struct Way {
  Rounding rounding;
  bool forgets_nan;  // as Arithmetic says of vectors and of the rest
};

// The loops of one instruction set: one for each optimizer and each type of gradients. Each element is computed
// independently of the others, so a run may be cut anywhere.
struct UpdateLoops {
  void (*adam)(const AdamStep& step, Way way, const Run<float>& run);
  void (*adam_bfloat16)(const AdamStep& step, Way way, const Run<Bfloat16>& run);
  void (*sgd)(const SgdStep& step, Way way, const Run<float>& run);
  void (*sgd_bfloat16)(const SgdStep& step, Way way, const Run<Bfloat16>& run);
};

extern const UpdateLoops portable_update;
#if defined(__x86_64__)
extern const UpdateLoops avx2_update;  // also needs FMA
extern const UpdateLoops avx512_update;
#endif

}  // namespace ckpt::kernels
