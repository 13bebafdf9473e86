// The state that the benches capture and move: the tensors of GPT-2 in float32, in touched memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "client/tensor_registry.hpp"
#include "device/device.hpp"

namespace ckpt::bench {

struct NamedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
};

inline std::size_t bytes_of(const NamedTensor& tensor) {
  std::size_t bytes = sizeof(float);
  for (const std::int64_t extent : tensor.shape) bytes *= static_cast<std::size_t>(extent);
  return bytes;
}

// The tensors of GPT-2 (124M), with as many layers as it takes to have at least `total_bytes`.
inline std::vector<NamedTensor> gpt2(std::size_t total_bytes) {
  constexpr std::int64_t width = 768;
  std::vector<NamedTensor> tensors = {
      {"wte.weight", {50257, width}}, {"wpe.weight", {1024, width}}, {"ln_f.weight", {width}}, {"ln_f.bias", {width}}};
  std::size_t bytes = 0;
  for (const NamedTensor& tensor : tensors) bytes += bytes_of(tensor);
  for (int layer = 0; bytes < total_bytes; ++layer) {
    const std::vector<NamedTensor> block = {{"ln_1.weight", {width}},
                                            {"ln_1.bias", {width}},
                                            {"attn.c_attn.weight", {width, 3 * width}},
                                            {"attn.c_attn.bias", {3 * width}},
                                            {"attn.c_proj.weight", {width, width}},
                                            {"attn.c_proj.bias", {width}},
                                            {"ln_2.weight", {width}},
                                            {"ln_2.bias", {width}},
                                            {"mlp.c_fc.weight", {width, 4 * width}},
                                            {"mlp.c_fc.bias", {4 * width}},
                                            {"mlp.c_proj.weight", {4 * width, width}},
                                            {"mlp.c_proj.bias", {width}}};
    for (const NamedTensor& tensor : block) {
      tensors.push_back({"h." + std::to_string(layer) + "." + tensor.name, tensor.shape});
      bytes += bytes_of(tensor);
    }
  }
  return tensors;
}

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;

inline Memory touched(std::size_t size_bytes) {
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(64, (size_bytes + 63) / 64 * 64)));
  for (std::size_t i = 0; i < size_bytes; ++i) memory.get()[i] = static_cast<std::byte>(i * 31 >> 5);
  return memory;
}

// The tensors of one rank, registered with an engine.
class Gpt2State {
 public:
  Gpt2State(std::size_t total_bytes, device::Device& device) {
    for (const NamedTensor& tensor : gpt2(total_bytes)) {
      memory_.push_back(touched(bytes_of(tensor)));
      registry_.add({sizeof(ckpt_tensor), tensor.name.c_str(), memory_.back().get(), tensor.shape.data(),
                     static_cast<std::int32_t>(tensor.shape.size()), CKPT_F32, CKPT_HOST, CKPT_OVERLAPPED},
                    device);
    }
  }
  const client::RankState& rank() { return registry_.state(); }
  const device::Plan& plan() { return rank().main.plan; }

 private:
  std::vector<Memory> memory_;
  client::TensorRegistry registry_{"rank0", "rank0.private"};
};

}  // namespace ckpt::bench
