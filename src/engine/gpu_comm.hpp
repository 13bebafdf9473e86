// Communications that begin and end on streams of the GPU: their gate is turned by the GPU itself when it gets there,
// and their events come into the log with the times of the GPU (arena/comm_log.hpp). So the agent knows when the
// network is idle, and not when the host has enqueued something.
//
// Each has a place in the words, so that communications of several streams may begin and end in any order. Where all
// places are taken, because the host is far ahead of the GPU, a communication is not seen.
//
// Any thread. Belongs to the control file that the engine had when it restored.
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

namespace ckpt::engine {

class GpuComm {
 public:
  // Null where the device has no timeline.
  static std::unique_ptr<GpuComm> open(device::Device& device, std::shared_ptr<arena::Control> control);

  // Whether anything has begun here, ever.
  bool is_used() const { return used_.load(std::memory_order_acquire); }
  // Channels are below arena::comm_channels_max. Throws Failure where thousands have begun and none has ended.
  void begin(std::uint32_t comm_channel, device::Stream on);
  // What has begun first on `comm_channel` ends. False where all has ended.
  bool end(std::uint32_t comm_channel, device::Stream on);
  // An iteration ends behind what is enqueued on `on`.
  void iteration(device::Stream on);

 private:
  using Number = std::optional<std::uint32_t>;  // none: not seen
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

}  // namespace ckpt::engine
