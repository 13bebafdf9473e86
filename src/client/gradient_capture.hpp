// GradientCapture keeps what an update of the tensors needs to be repeated: the gradients that the trainer gives before
// the update, and the factors of its step. The next snapshot captures this as a gradient record
// (arena/gradient_record.hpp), behind the main shard's piece, if one update lies between the two checkpoints.
//
// Only the training thread uses it. The plan that record() returns, and its bytes in host memory, do not change until
// the next call of record(). On the GPU, bytes of the plan change by work that is enqueued after updating().
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>

#include "arena/gradient_record.hpp"
#include "ckptengine/ckptengine.h"
#include "client/gradient_memory.hpp"
#include "client/tensor_registry.hpp"

namespace ckpt::client {

class GradientCapture {
 public:
  // The device outlives this object.
  explicit GradientCapture(device::Device& device) : device_(device), memory_(device) {}

  // The tensors may change now. `base`: the checkpoint that they hold, if it has just been captured.
  void updating(std::optional<CheckpointId> base);
  // A snapshot has begun, or was not taken: gradients that come now are not those of one update after the base.
  void updated() { base_.reset(); }
  bool has_base() const { return base_.has_value(); }

  // Copies the gradient of one parameter. Returns "" or a sentence that says why this update cannot be repeated; then
  // the next snapshot has no record. Throws Failure (CKPT_ERR_INVALID) for a malformed gradient.
  std::string add(const ckpt_gradient_t& gradient, const RankState& state);

  // Returns what to capture as the gradient record of `checkpoint`, or null if the update cannot be repeated.
  const device::Plan* record(CheckpointId checkpoint, const RankState& state);
  // Whether the last record() would have been so long that it is no use.
  bool is_too_long() const { return is_too_long_; }

 private:
  struct Given {
    arena::GradientRecord::Updated updated;
    device::Plan::Region copy;
  };

  const arena::LayoutEntry* find(const char* name, const RankState& state);
  std::uint64_t place_of(const char* name, std::uint64_t elements, const RankState& state);
  std::uint64_t count_of(const char* name, const RankState& state);
  std::uint32_t number_of(const arena::GradientRecord::Step& step);
  device::Plan::Region checked(const ckpt_gradient_t& gradient) const;
  std::string give_up(std::string why);
  void copy_the_rest(const RankState& state);

  device::Device& device_;
  GradientMemory memory_;
  std::optional<CheckpointId> base_;
  std::uint64_t layout_hash_ = 0;  // of the layout that `entries_` and the record refer to
  std::unordered_map<std::string, std::size_t> entries_;
  arena::GradientRecord record_;
  std::vector<Given> given_;
  std::vector<bool> is_updated_;  // by entry of the layout
  std::vector<std::byte> description_;
  device::Plan plan_{{}};
  bool is_too_long_ = false;
};

}  // namespace ckpt::client
