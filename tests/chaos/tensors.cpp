#include "tensors.hpp"

#include <algorithm>
#include <cstring>

namespace ckpt::chaos {

std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  return x ^ (x >> 32);
}

std::uint64_t Content::word(std::size_t at) const {
  const std::uint64_t x = (seed_ + at) * 0x9e3779b97f4a7c15u;
  return x ^ (x >> 32);
}

void Content::fill(std::vector<std::byte>& bytes) const {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t value = word(at);
    std::memcpy(&bytes[at], &value, std::min(sizeof value, bytes.size() - at));
  }
}

std::size_t Content::count_wrong(const std::vector<std::byte>& bytes, std::size_t& first) const {
  std::size_t wrong = 0;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t value = word(at);
    const std::size_t length = std::min(sizeof value, bytes.size() - at);
    if (std::memcmp(&bytes[at], &value, length) == 0) continue;
    const auto* expected = reinterpret_cast<const std::byte*>(&value);
    for (std::size_t i = 0; i < length; ++i) {
      if (bytes[at + i] != expected[i] && wrong++ == 0) first = at + i;
    }
  }
  return wrong;
}

void allocate(std::vector<Tensor>& model) {
  for (Tensor& tensor : model) {
    std::size_t elements = 1;
    for (const std::int64_t extent : tensor.shape) elements *= static_cast<std::size_t>(extent);
    tensor.bytes.resize(elements * tensor.element_bytes);
  }
}

std::vector<Tensor> content_model(std::int64_t bytes, std::int64_t rank) {
  const std::int64_t rows = bytes / 1024;
  std::vector<Tensor> model = {
      {"embedding.weight", CKPT_F32, 4, {rows * 2 / 5, 256}, CKPT_OVERLAPPED, false, from_the_start},
      {"exp_avg", CKPT_F32, 4, {rows / 5, 256}, CKPT_OVERLAPPED, false, 2},
      {"master.weight", CKPT_F64, 8, {rows / 5, 128}, CKPT_OVERLAPPED, true, from_the_start},
      {"empty", CKPT_F32, 4, {0, 16}, CKPT_OVERLAPPED, false, from_the_start},
      {"step", CKPT_I64, 8, {}, CKPT_OVERLAPPED, false, from_the_start},
      {"loss_scale", CKPT_F32, 4, {}, CKPT_OVERLAPPED, true, from_the_start},
      {"running_mean", CKPT_F32, 4, {96}, CKPT_SYNCHRONOUS, false, from_the_start},
      {"rng", CKPT_U8, 1, {5000 + rank}, CKPT_SYNCHRONOUS, true, from_the_start},
      {"position", CKPT_I64, 8, {}, CKPT_SYNCHRONOUS, false, from_the_start},
  };
  for (int layer = 0; layer < 8; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer);
    model.push_back({prefix + ".weight", CKPT_BF16, 2, {rows / 40, 512}, CKPT_OVERLAPPED, false, from_the_start});
    model.push_back({prefix + ".mask", CKPT_BOOL, 1, {1237 + layer}, CKPT_OVERLAPPED, false, from_the_start});
  }
  allocate(model);
  return model;
}

}  // namespace ckpt::chaos
