// The path of pieces that lie in host memory: takes them from the slots that they were captured into, so that no update
// waits for other members, and pins the landings (path.hpp).
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "device/cuda_handles.hpp"
#include "device/cuda_path.hpp"
#include "device/device.hpp"
#include "device/path.hpp"

namespace ckpt::device {

class CudaPiecePath : public Path {
 public:
  static Id new_id();

  // `landings` stay mapped until the path has gone. Throws Failure.
  CudaPiecePath(int ordinal, const Group& group, const Settings& settings, Range landings, Failed failed);
  ~CudaPiecePath() override;
  CudaPiecePath(const CudaPiecePath&) = delete;
  CudaPiecePath& operator=(const CudaPiecePath&) = delete;

  bool wait_to_meet(Deadline deadline) override { return path_->wait_to_meet(deadline); }
  bool begin(Exchange exchange) override;
  void allow(std::uint64_t number, std::uint64_t steps) override { path_->allow(number, steps); }
  void finish(std::uint64_t number) override { path_->finish(number); }
  void give_up(const std::string& why) override { path_->give_up(why); }

 private:
  void pin(Range landings);

  const Context context_;
  std::vector<Registration> pinned_;
  bool is_stuck_ = false;  // told before the path has gone
  std::unique_ptr<CudaPath> path_;
};

}  // namespace ckpt::device
