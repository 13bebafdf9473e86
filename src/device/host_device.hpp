// The device for tensors in host memory: copies and digests in one pass, on threads of its own.
#pragma once

#include "device/copy_pool.hpp"
#include "device/device.hpp"

namespace ckpt::device {

class HostDevice : public Device {
 public:
  // Keeps `copy_threads` threads, asleep between copies.
  explicit HostDevice(unsigned copy_threads) : pool_(copy_threads) {}

  bool reaches(ckpt_memory memory) const override { return memory == CKPT_HOST; }
  void capture(const Plan& plan, Packed to) override;
  void start(const Plan& plan, Packed to) override;
  bool finish(Deadline deadline) override { return pool_.wait(deadline); }
  void cancel() override { pool_.cancel(); }
  std::optional<std::size_t> load(const Plan& plan, ConstPacked from) override;

 private:
  // The started copy: kept here so that the pool's function holds one pointer, and nothing is allocated for it.
  const Plan* plan_ = nullptr;
  Packed to_{};
  CopyPool pool_;  // last: its threads end before what they use
};

}  // namespace ckpt::device
