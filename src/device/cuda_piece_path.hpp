// The path of pieces that lie in host memory: takes them from the slots that they were captured into, so that no update
// waits for other members, and pins the landings (path.hpp).
#pragma once

#include <memory>

#include "device/cuda_path.hpp"
#include "device/device.hpp"
#include "device/path.hpp"

namespace ckpt::device {

class CudaPiecePath : public Path {
 public:
  // Throws Failure: NCCL is missing here, or its environment overrides what a communicator of ours asks for.
  static void check(const char* const* environment);
  static Id new_id();

  // `landings` stay mapped as long as `failed`, which goes with the path or, where NCCL or the GPU does not end, with
  // its thread. Throws Failure.
  CudaPiecePath(int ordinal, const Group& group, const Settings& settings, Range landings, Failed failed);
  bool wait_to_meet(Deadline deadline) override { return path_->wait_to_meet(deadline); }
  bool begin(Exchange exchange) override;
  void allow(std::uint64_t number, std::uint64_t steps) override { path_->allow(number, steps); }
  void finish(std::uint64_t number) override { path_->finish(number); }
  void give_up(const std::string& why) override { path_->give_up(why); }

 private:
  std::unique_ptr<CudaPath> path_;
};

}  // namespace ckpt::device
