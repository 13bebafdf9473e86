// GradientMemory keeps copies of the gradients of one update, until the next snapshot has captured them: those in host
// memory there, and those on the GPU there. It keeps its memory for the gradients of the next update.
//
// Only the training thread uses it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "ckptengine/ckptengine.h"
#include "device/device.hpp"

namespace ckpt::client {

class GradientMemory {
 public:
  // The device outlives this object.
  explicit GradientMemory(device::Device& device) : device_(device) {}

  // Forgets all copies. On the GPU, later copies come after the work that is on their stream then.
  void clear();
  // Copies a gradient, on the GPU by work on `stream`. Returns the copy, padded to whole float32 with bytes of the
  // gradient. Its address is null if all copies together would take more than `most_bytes`. Throws Failure.
  device::Plan::Region keep(const device::Plan::Region& gradient, device::Stream stream, std::size_t most_bytes);

 private:
  struct Block {
    std::shared_ptr<std::byte> data;
    std::size_t size_bytes;
    std::size_t used_bytes;
    ckpt_memory memory;
  };
  std::byte* place(std::size_t size_bytes, ckpt_memory memory, std::size_t most_bytes);

  device::Device& device_;
  std::vector<Block> blocks_;
  std::size_t kept_bytes_ = 0;
};

}  // namespace ckpt::client
