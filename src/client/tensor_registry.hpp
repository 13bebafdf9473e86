// TensorRegistry knows the tensors that the trainer registered. state() lays them out as the rank's main shard and
// private shard. It does so again only after a registration has changed.
//
// Only the training thread uses it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "arena/layout.hpp"
#include "ckptengine/ckptengine.h"
#include "core/shard_parts.hpp"
#include "device/device.hpp"

namespace ckpt::client {

// One of the rank's two shards, laid out from the tensors that are registered now.
struct ShardState {
  arena::Layout layout;
  std::string layout_text;
  std::uint64_t layout_hash = 0;
  device::Plan plan{{}};

  std::uint64_t length_bytes() const { return layout.length_bytes; }
};

// What one slot shall hold: a part of the main shard, or the private shard.
struct PieceState {
  std::string name;  // of the part, or of the private shard
  const ShardState* shard = nullptr;
  device::Plan plan{{}};

  std::uint64_t length_bytes() const { return plan.length_bytes(); }
};

struct RankState {
  ShardState main;
  ShardState private_;
  // The parts of the main shard that this rank captures, in order, then the private shard.
  std::vector<PieceState> captured;
};

class TensorRegistry {
 public:
  TensorRegistry(std::string main_shard, std::string private_shard)
      : main_shard_(std::move(main_shard)), private_shard_(std::move(private_shard)) {}

  // Sets which parts of the main shard this rank captures. Before the first call it captures all of it.
  void share(const core::Share& share);

  // add(), move() and remove() throw Failure (CKPT_ERR_INVALID) if they cannot do it, and then change nothing. `device`
  // decides which memory it accepts.
  void add(const ckpt_tensor& tensor, device::Device& device);
  void move(const std::string& name, void* data, device::Device& device);
  void remove(const std::string& name);

  bool empty() const { return tensors_.empty(); }
  bool has_gpu_tensors() const { return gpu_tensors_ != 0; }
  // Valid until the next change.
  const RankState& state();

 private:
  struct Tensor {
    arena::LayoutEntry entry;
    std::byte* data;
    ckpt_memory memory;
    ckpt_capture capture;
  };
  using Tensors = std::map<std::string, Tensor, std::less<>>;

  static device::Plan::Region region_of(const Tensor& tensor);
  Tensors::iterator find(const std::string& name);
  void lay_out(ShardState& shard, ckpt_capture capture) const;
  void plan(ShardState& shard) const;
  void plan_captures();

  const std::string main_shard_;
  const std::string private_shard_;
  core::Share share_;
  Tensors tensors_;
  std::size_t gpu_tensors_ = 0;
  RankState state_;
  bool layout_changed_ = true;
  bool memory_changed_ = true;
};

}  // namespace ckpt::client
