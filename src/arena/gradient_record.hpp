// GradientRecord says how to repeat one step of an optimizer: which tensors of the piece the step changed, with which
// factors, and where their gradients are. A gradient record is this description and then, in the same memory, the
// gradients and the bytes of the piece that the step did not compute. It belongs to one piece of one checkpoint.
//
// Plain values and pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/checkpoint_id.hpp"
#include "kernels/optimizer.hpp"

namespace ckpt::arena {

struct GradientRecord {
  // A step of torch's fused Adam on a GPU. Its factors depend on the number of the step, which is on the GPU, too. So
  // the trainer does not know it: it is a float32 in the piece.
  struct CountedStep {
    kernels::AdamSettings settings;

    bool operator==(const CountedStep&) const = default;
  };
  using Step = std::variant<kernels::AdamStep, kernels::SgdStep, CountedStep>;

  // A parameter and its moments. Each has `elements` float32 values. Places are in bytes from the start of the piece;
  // that of the gradient is from the start of the record.
  struct Updated {
    std::uint64_t elements = 0;
    std::uint64_t gradient_at = 0;
    std::uint64_t parameter_at = 0;
    std::uint64_t first_moment_at = 0;  // of an SgdStep: the momentum
    std::uint64_t second_moment_at = 0;
    std::uint64_t largest_second_moment_at = 0;  // if the step has amsgrad
    std::uint64_t count_at = 0;                  // of a CountedStep: the number of the step, which is copied
    std::uint32_t step = 0;                      // index in `steps`
    bool is_bfloat16 = false;                    // the gradient is bfloat16; otherwise float32

    // The places that the step writes.
    std::vector<std::uint64_t> written(const Step& by) const;
  };
  // Bytes of the piece that are in the record as they are.
  struct Copied {
    std::uint64_t piece_at = 0;
    std::uint64_t record_at = 0;
    std::uint64_t size_bytes = 0;
  };

  CheckpointId base;        // the checkpoint that the step began with
  CheckpointId checkpoint;  // the checkpoint after the step
  std::uint64_t piece_bytes = 0;
  std::uint64_t layout_hash = 0;
  std::string torch_version;
  std::vector<Step> steps;
  std::vector<Updated> updated;
  std::vector<Copied> copied;
};

// Returns the size in bytes that encode() gives a description, a multiple of 64. It depends only on how many entries
// the record has, and on the length of torch_version.
std::uint64_t description_bytes(const GradientRecord& record);
std::vector<std::byte> encode(const GradientRecord& record);

// Decodes the description at the start of a record. Trusts nothing: throws Failure (CKPT_ERR_CORRUPT) unless all places
// are within the record and the piece, and each byte of the piece is either updated or copied, once.
GradientRecord decode_record(std::span<const std::byte> record);

// The longest record that is made for a piece of this size. A longer one would hardly be shorter than the piece.
std::uint64_t record_bytes_max(std::uint64_t piece_bytes);
// The data capacity that a slot needs for a piece of this size and its record.
std::uint64_t bytes_with_record(std::uint64_t piece_bytes);

}  // namespace ckpt::arena
