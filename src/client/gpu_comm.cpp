#include "client/gpu_comm.hpp"

#include "base/error.hpp"

namespace ckpt::client {
namespace {

using arena::CommKind;

constexpr std::size_t open_max = 4096;  // per channel

// One track for the begins of each channel, one for its ends, and one for each kind of mark on training's stream.
constexpr std::uint32_t kinds = 2;
constexpr std::uint32_t iteration_track = kinds * arena::comm_channels_max;
constexpr std::uint32_t bubble_begin_track = iteration_track + 1, bubble_end_track = iteration_track + 2;
constexpr std::uint32_t update_track = iteration_track + 3;
static_assert(update_track < device::StreamTimestamps::tracks_max);
constexpr std::uint32_t begin_track(std::uint32_t comm_channel) { return kinds * comm_channel; }
constexpr std::uint32_t end_track(std::uint32_t comm_channel) { return kinds * comm_channel + 1; }

device::Range whole_pages(arena::CommWords& words) {
  return {reinterpret_cast<std::byte*>(&words), arena::control_file_bytes - arena::page_bytes};
}

}  // namespace

// Loads `ended` first: it never exceeds `begun`, so equal values mean that there was no bubble between the two loads.
GpuBubbles::Now GpuBubbles::now() const {
  const arena::CommWords::Channel& words = control_->comm().bubbles_on_gpu;
  const std::uint32_t ended = words.ended.load(std::memory_order_acquire);
  const std::uint32_t begun = words.begun.load(std::memory_order_acquire);
  const auto since = static_cast<std::int32_t>(begun - before_);
  return since <= 0 ? Now{} : Now{static_cast<std::uint32_t>(since), begun != ended};
}

std::unique_ptr<GpuComm> GpuComm::open(device::Device& device, std::shared_ptr<arena::Control> control) {
  std::unique_ptr<GpuComm> comm(new GpuComm(std::move(control)));
  comm->timestamps_ =
      device.timestamps(whole_pages(comm->words()), comm->control_,
                        [self = comm.get()](std::uint32_t track, Clock::time_point at) { self->reached(track, at); });
  return comm->timestamps_ ? std::move(comm) : nullptr;
}

// Returns the next number, if the previous communication in its place is over.
GpuComm::Number GpuComm::take_number() {
  const std::uint32_t number = last_number_ + 1, before = last_in_place_[number % arena::comm_gpu_max];
  const auto& [begun, ended] = place(number);
  if (begun.load(std::memory_order_acquire) != before || ended.load(std::memory_order_acquire) != before)
    return std::nullopt;
  return number;
}

void GpuComm::begin(std::uint32_t comm_channel, device::Stream on) {
  const std::lock_guard lock(mutex_);
  if (open_[comm_channel].size() == open_max)
    throw Failure(CKPT_ERR_INVALID, std::to_string(open_max) + " communications have begun on channel " +
                                        std::to_string(comm_channel) +
                                        " without comm_end(), which is the limit; call comm_end() for each");
  Number number = take_number();
  if (number && !timestamps_->add(on, {begin_track(comm_channel), &place(*number).begun, *number})) number.reset();
  if (number) last_in_place_[*number % arena::comm_gpu_max] = last_number_ = *number;
  open_[comm_channel].push_back(number);
  is_used_ = true;
}

bool GpuComm::end(std::uint32_t comm_channel, device::Stream on) {
  const std::lock_guard lock(mutex_);
  if (open_[comm_channel].empty()) return false;
  const Number number = open_[comm_channel].front();
  open_[comm_channel].pop_front();
  if (!number || timestamps_->add(on, {end_track(comm_channel), &place(*number).ended, *number})) return true;
  // The GPU cannot report it. Early is better than never.
  place(*number).ended.store(*number, std::memory_order_release);
  reached(end_track(comm_channel), Clock::now());
  return true;
}

void GpuComm::bubble_begin(device::Stream on) {
  const std::lock_guard lock(mutex_);
  if (on != training_ || depth_++ != 0) return;
  is_used_ = true;
  is_bubble_recorded_ = timestamps_->add(on, {bubble_begin_track, &words().bubbles_on_gpu.begun, bubbles_ + 1});
  if (is_bubble_recorded_) ++bubbles_;
}

bool GpuComm::bubble_end(device::Stream on) {
  const std::lock_guard lock(mutex_);
  if (on != training_) return true;
  if (depth_ == 0) return false;
  if (--depth_ == 0) end_bubble();
  return true;
}

void GpuComm::end_bubble() {
  if (!is_bubble_recorded_) return;
  if (timestamps_->add(*training_, {bubble_end_track, &words().bubbles_on_gpu.ended, bubbles_})) return;
  words().bubbles_on_gpu.ended.store(bubbles_, std::memory_order_release);
  reached(bubble_end_track, Clock::now());
}

bool GpuComm::iteration(device::Stream on) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(depth_, 0) != 0) end_bubble();
  training_ = on;
  if (!is_used_) return false;
  if (!timestamps_->add(on, {iteration_track, nullptr, 0})) reached(iteration_track, Clock::now());
  return true;
}

void GpuComm::update() {
  const std::lock_guard lock(mutex_);
  if (!is_used_ || !training_) return;
  if (!timestamps_->add(*training_, {update_track, nullptr, 0})) reached(update_track, Clock::now());
}

GpuBubbles GpuComm::bubbles() const {
  const std::lock_guard lock(mutex_);
  return {control_, bubbles_};
}

// Usually runs on the timeline's thread.
void GpuComm::reached(std::uint32_t track, Clock::time_point at) {
  arena::CommWriter writer(words());
  switch (track) {
    case iteration_track:
      return writer.iteration(at);
    case bubble_begin_track:
      return writer.bubble_begin(at);
    case bubble_end_track:
      return writer.bubble_end(at);
    case update_track:
      return writer.update(at);
    default:
      return writer.happened(track % kinds == 0 ? CommKind::begin : CommKind::end, track / kinds, at);
  }
}

}  // namespace ckpt::client
