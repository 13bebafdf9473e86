#include "client/gradient_memory.hpp"

#include <algorithm>
#include <cstring>

namespace ckpt::client {
namespace {

constexpr std::size_t alignment_bytes = 64;
constexpr std::size_t block_bytes = std::size_t{16} << 20;  // so that small gradients share a block

std::size_t aligned(std::size_t size_bytes) {
  return (size_bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

}  // namespace

void GradientMemory::clear() {
  for (Block& block : blocks_) block.used_bytes = 0;
  kept_bytes_ = 0;
}

std::byte* GradientMemory::place(std::size_t size_bytes, ckpt_memory memory, std::size_t most_bytes) {
  auto block = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& each) {
    return each.memory == memory && each.size_bytes - each.used_bytes >= size_bytes;
  });
  if (block == blocks_.end()) {
    const std::size_t capacity = std::max(size_bytes, std::min(block_bytes, aligned(most_bytes - kept_bytes_)));
    std::shared_ptr<std::byte> data =
        memory == CKPT_DEVICE ? device_.allocate(capacity)
                              : std::shared_ptr<std::byte>(new std::byte[capacity], std::default_delete<std::byte[]>());
    block = blocks_.insert(blocks_.end(), {std::move(data), capacity, 0, memory});
  }
  std::byte* const at = block->data.get() + block->used_bytes;
  block->used_bytes += size_bytes;
  return at;
}

device::Plan::Region GradientMemory::keep(const device::Plan::Region& gradient, device::Stream stream,
                                          std::size_t most_bytes) {
  const std::size_t padded_bytes = (gradient.size_bytes + sizeof(float) - 1) / sizeof(float) * sizeof(float);
  if (padded_bytes > most_bytes - kept_bytes_) return {};
  std::byte* const to = place(aligned(padded_bytes), gradient.memory, most_bytes);
  kept_bytes_ += padded_bytes;
  const auto copy = [&](std::size_t at, std::size_t size_bytes) {
    if (size_bytes == 0) return;
    if (gradient.memory == CKPT_DEVICE)
      device_.copy_within(to + at, gradient.data, size_bytes, stream);
    else
      std::memcpy(to + at, gradient.data, size_bytes);
  };
  copy(0, gradient.size_bytes);
  copy(gradient.size_bytes, padded_bytes - gradient.size_bytes);
  return {to, padded_bytes, gradient.memory};
}

}  // namespace ckpt::client
