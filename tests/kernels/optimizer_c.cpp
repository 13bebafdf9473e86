// kernels/optimizer.hpp for ctypes: a shared library that only tests/process/test_optimizer.py loads.
#include <array>
#include <cstdint>

#include "kernels/digest.hpp"
#include "kernels/optimizer.hpp"

namespace {

using namespace ckpt::kernels;

// What both optimizers are called with. optimizer_steps.py has the same structure.
struct Call {
  double factors[5];  // Adam: learning rate, beta1, beta2, epsilon, weight decay. SGD: learning rate, momentum,
                      // dampening, weight decay, unused
  double step;
  std::int32_t flags[3];  // Adam: decoupled weight decay, amsgrad, maximize. SGD: first step, Nesterov, maximize
  std::int32_t fused;
  std::int32_t capability;
  std::int32_t isa;
  std::int32_t bfloat16;
  std::uint64_t elements;
  const void* gradient;
  float* tensors[4];          // updated in place
  std::uint64_t* digests[4];  // of each tensor as a piece of its own; null: none
};

TorchVariant variant_of(const Call& call) {
  return {static_cast<TorchForm>(call.fused), static_cast<TorchCapability>(call.capability)};
}

Gradient gradient_of(const Call& call) {
  if (call.bfloat16 != 0) return std::span(static_cast<const Bfloat16*>(call.gradient), call.elements);
  return std::span(static_cast<const float*>(call.gradient), call.elements);
}

StateTensor tensor_of(const Call& call, std::size_t i) {
  return {call.tensors[i], call.tensors[i], call.digests[i], 0, call.elements * sizeof(float)};
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int isa_is_supported(std::int32_t isa) {
  return supported(static_cast<Isa>(isa)) ? 1 : 0;
}

extern "C" __attribute__((visibility("default"))) void adam(const Call* call) {
  const AdamSettings settings{.learning_rate = call->factors[0],
                              .beta1 = call->factors[1],
                              .beta2 = call->factors[2],
                              .epsilon = call->factors[3],
                              .weight_decay = call->factors[4],
                              .decoupled_weight_decay = call->flags[0] != 0,
                              .amsgrad = call->flags[1] != 0,
                              .maximize = call->flags[2] != 0};
  const AdamStep step = adam_step(settings, call->step, variant_of(*call));
  update(step, AdamState{tensor_of(*call, 0), tensor_of(*call, 1), tensor_of(*call, 2), tensor_of(*call, 3)},
         gradient_of(*call), static_cast<Isa>(call->isa));
}

extern "C" __attribute__((visibility("default"))) void sgd(const Call* call) {
  const SgdSettings settings{.learning_rate = call->factors[0],
                             .momentum = call->factors[1],
                             .dampening = call->factors[2],
                             .weight_decay = call->factors[3],
                             .nesterov = call->flags[1] != 0,
                             .maximize = call->flags[2] != 0};
  const SgdStep step = sgd_step(settings, call->flags[0] != 0, variant_of(*call));
  update(step, SgdState{tensor_of(*call, 0), tensor_of(*call, 1)}, gradient_of(*call), static_cast<Isa>(call->isa));
}

extern "C" __attribute__((visibility("default"))) void digests(const void* data, std::uint64_t size_bytes,
                                                               std::uint64_t* to) {
  digest_leaves(data, size_bytes, to);
}
