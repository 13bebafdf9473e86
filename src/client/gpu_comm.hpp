// GpuComm tells the agent when training's communications begin and end on the GPU's streams. The GPU itself writes when
// a communication begins and when it ends, so the times in the log (arena/comm_log.hpp) are the GPU's. The time at
// which the host enqueued the work would not show when the network is idle.
//
// Each communication has a place of its own in arena::CommWords, so they may begin and end in any order. If the host is
// so far ahead that all places are taken, a communication is not recorded.
//
// Any thread may use it. It writes to the control file that the engine has from restore() on, even if the engine gets
// another one later.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "arena/comm_log.hpp"
#include "arena/control.hpp"
#include "device/device.hpp"

namespace ckpt::client {

class GpuComm {
 public:
  // Null if the device has no StreamTimestamps.
  static std::unique_ptr<GpuComm> open(device::Device& device, std::shared_ptr<arena::Control> control);

  // True if begin() was ever called.
  bool is_used() const { return used_.load(std::memory_order_acquire); }
  // Channels are below arena::comm_channels_max. Throws Failure if end() is still to be called for 4096 communications
  // on this channel.
  void begin(std::uint32_t comm_channel, device::Stream on);
  // Ends the oldest communication on `comm_channel`. False if all have ended.
  bool end(std::uint32_t comm_channel, device::Stream on);
  // Records that an iteration ends when the GPU has done the work enqueued on `on`.
  void iteration(device::Stream on);

 private:
  using Number = std::optional<std::uint32_t>;  // none: the communication is not recorded
  explicit GpuComm(std::shared_ptr<arena::Control> control) : control_(std::move(control)) {}
  arena::CommWords& words() { return control_->comm(); }
  arena::CommWords::Channel& place(std::uint32_t number) { return words().on_gpu[number % arena::comm_gpu_max]; }
  Number take_number();
  void reached(std::uint32_t track, Clock::time_point at);

  const std::shared_ptr<arena::Control> control_;
  std::atomic<bool> used_{false};

  std::mutex mutex_;  // for all below
  std::uint32_t last_number_ = 0;
  std::array<std::uint32_t, arena::comm_gpu_max> last_in_place_{};
  std::array<std::deque<Number>, arena::comm_channels_max> open_;
  std::unique_ptr<device::StreamTimestamps> timestamps_;
};

}  // namespace ckpt::client
