// GpuComm tells the agent when training's communications begin and end on the GPU's streams, and when the stream that
// training computes on waits for other ranks: a bubble. The GPU itself writes when it gets to such a point, so the
// times in the log (arena/comm_log.hpp) are the GPU's. The time at which the host enqueued the work would not show when
// the network or the GPU is idle.
//
// Each communication has a place of its own in arena::CommWords, so they may begin and end in any order. If the host is
// so far ahead that all places are taken, a communication is not recorded.
//
// Training computes on the stream of the last snapshot(). Other streams may wait while this one computes, so a bubble
// on another stream is not recorded.
//
// Any thread may use it. It writes to the control file that the engine has from restore() on, even if the engine gets
// another one later.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "arena/comm_log.hpp"
#include "arena/control.hpp"
#include "device/device.hpp"

namespace ckpt::client {

// Bubbles on a GPU, as the GPU itself counts them. Any thread may ask, and makes no call of the driver.
class GpuBubbles {
 public:
  // `before`: how many the host has marked so far. Only later ones count.
  GpuBubbles(std::shared_ptr<const arena::Control> control, std::uint32_t before)
      : control_(std::move(control)), before_(before) {}

  struct Now {
    std::uint32_t begun = 0;
    bool is_in_one = false;
  };
  Now now() const;

 private:
  std::shared_ptr<const arena::Control> control_;
  std::uint32_t before_;
};

class GpuComm {
 public:
  // Null if the device has no StreamTimestamps.
  static std::unique_ptr<GpuComm> open(device::Device& device, std::shared_ptr<arena::Control> control);

  // Channels are below arena::comm_channels_max. Throws Failure if end() is still to be called for 4096 communications
  // on this channel.
  void begin(std::uint32_t comm_channel, device::Stream on);
  // Ends the oldest communication on `comm_channel`. False if all have ended.
  bool end(std::uint32_t comm_channel, device::Stream on);
  // Bubbles may be nested; the outer one counts. bubble_end() returns false if none has begun on training's stream.
  void bubble_begin(device::Stream on);
  bool bubble_end(device::Stream on);
  // snapshot() was called: training computes on `on`, and an iteration ends when the GPU has done the work enqueued
  // there. Ends a bubble whose end was forgotten. Returns false, and records no iteration, if neither communications
  // nor bubbles were ever marked here.
  bool iteration(device::Stream on);
  // before_update() was called: the stretch ends when the GPU has done the work enqueued on training's stream.
  void update();
  // Those that begin from now on.
  GpuBubbles bubbles() const;

 private:
  using Number = std::optional<std::uint32_t>;  // none: the communication is not recorded
  explicit GpuComm(std::shared_ptr<arena::Control> control) : control_(std::move(control)) {}
  arena::CommWords& words() { return control_->comm(); }
  arena::CommWords::Channel& place(std::uint32_t number) { return words().on_gpu[number % arena::comm_gpu_max]; }
  Number take_number();
  void end_bubble();
  void reached(std::uint32_t track, Clock::time_point at);

  const std::shared_ptr<arena::Control> control_;

  mutable std::mutex mutex_;  // for all below
  bool is_used_ = false;
  std::uint32_t last_number_ = 0;
  std::array<std::uint32_t, arena::comm_gpu_max> last_in_place_{};
  std::array<std::deque<Number>, arena::comm_channels_max> open_;
  std::optional<device::Stream> training_;  // the stream that training computes on; none before the first snapshot()
  std::uint32_t depth_ = 0;                 // nested bubbles
  std::uint32_t bubbles_ = 0;               // that have begun
  bool is_bubble_recorded_ = false;         // the one that is open
  std::unique_ptr<device::StreamTimestamps> timestamps_;
};

}  // namespace ckpt::client
