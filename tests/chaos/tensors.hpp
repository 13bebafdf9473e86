// The tensors of chaos_trainer, and the content of those that no optimizer updates: at iteration k, word i of a tensor
// is a pure function of (rank, tensor, k, i). So anybody can compute it, and every byte can be compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ckptengine/ckptengine.h"

namespace ckpt::chaos {

std::uint64_t mixed(std::uint64_t x);

// The content of one tensor at one iteration.
class Content {
 public:
  Content(std::uint64_t rank, std::uint64_t tensor, std::int64_t iteration)
      : seed_(mixed(mixed(mixed(rank + 1) + tensor) + static_cast<std::uint64_t>(iteration))) {}

  void fill(std::vector<std::byte>& bytes) const;
  // How many bytes differ, and where the first of them is.
  std::size_t count_wrong(const std::vector<std::byte>& bytes, std::size_t& first) const;

 private:
  std::uint64_t word(std::size_t at) const;

  std::uint64_t seed_;
};

constexpr std::int64_t from_the_start = -1;

struct Tensor {
  enum class Kind : std::uint8_t { content, trained, constant };

  std::string name;
  ckpt_dtype dtype;
  std::size_t element_bytes;
  std::vector<std::int64_t> shape;
  ckpt_capture capture;
  bool moves;               // lives at another address after every update
  std::int64_t created_at;  // iteration that creates it, as optimizers create their moments
  Kind kind = Kind::content;
  std::vector<std::byte> bytes = {};
  bool registered = false;
};

// Gives each tensor its memory.
void allocate(std::vector<Tensor>& model);

// A model of `bytes` bytes without an optimizer.
std::vector<Tensor> content_model(std::int64_t bytes, std::int64_t rank);

}  // namespace ckpt::chaos
