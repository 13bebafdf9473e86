// The device for tensors in host memory: copies and digests in one pass, on threads of its own.
#pragma once

#include <array>

#include "device/copy_pool.hpp"
#include "device/device.hpp"

namespace ckpt::device {

class HostDevice : public Device {
 public:
  // Keeps `copy_threads` threads, asleep between copies.
  explicit HostDevice(unsigned copy_threads) : pool_(copy_threads) {}

  bool reaches(ckpt_memory memory) const override { return memory == CKPT_HOST; }
  void capture(const Plan& plan, Packed to) override;
  void start(std::span<const Copy> copies) override;
  bool finish(Deadline deadline) override { return pool_.wait(deadline); }
  void cancel() override { pool_.cancel(); }
  std::optional<std::size_t> load(const Plan& plan, ConstPacked from) override;

 private:
  void copy_leaves(std::size_t first, std::size_t last) const;

  // The started copies: kept here so that the pool's function holds one pointer, and nothing is allocated for it.
  std::array<Copy, plans_max> copies_{};
  std::size_t copy_count_ = 0;
  CopyPool pool_;  // last: its threads end before what they use
};

}  // namespace ckpt::device
