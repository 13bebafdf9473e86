#include "engine/gpu_comm.hpp"

#include "base/error.hpp"

namespace ckpt::engine {
namespace {

using arena::CommKind;

constexpr std::size_t open_max = 4096;  // of a stream

// A channel for the begins of each stream, one for its ends, and one for iterations.
constexpr std::uint32_t kinds = 2;
constexpr std::uint32_t iteration_channel = kinds * arena::comm_streams_max;
static_assert(iteration_channel < device::Timeline::channels_max);
constexpr std::uint32_t begin_channel(std::uint32_t stream) { return kinds * stream; }
constexpr std::uint32_t end_channel(std::uint32_t stream) { return kinds * stream + 1; }

device::Range whole_pages(arena::CommWords& words) {
  return {reinterpret_cast<std::byte*>(&words), arena::control_file_bytes - arena::page_bytes};
}

}  // namespace

std::unique_ptr<GpuComm> GpuComm::open(device::Device& device, std::shared_ptr<arena::Control> control) {
  std::unique_ptr<GpuComm> comm(new GpuComm(std::move(control)));
  comm->timeline_ =
      device.timeline(whole_pages(comm->words()), comm->control_,
                      [self = comm.get()](std::uint32_t channel, Clock::time_point at) { self->reached(channel, at); });
  return comm->timeline_ ? std::move(comm) : nullptr;
}

// The next one, where the one before in its place is over.
GpuComm::Number GpuComm::take_number() {
  const std::uint32_t number = last_number_ + 1, before = last_in_place_[number % arena::comm_gpu_max];
  const auto& [begun, ended] = place(number);
  if (begun.load(std::memory_order_acquire) != before || ended.load(std::memory_order_acquire) != before)
    return std::nullopt;
  return number;
}

void GpuComm::begin(std::uint32_t stream, device::Stream on) {
  const std::lock_guard lock(mutex_);
  if (open_[stream].size() == open_max)
    throw Failure(CKPT_ERR_INVALID, std::to_string(open_max) + " communications have begun on communication stream " +
                                        std::to_string(stream) + " and none has ended; call comm_end() for each");
  Number number = take_number();
  if (number && !timeline_->add(on, {begin_channel(stream), &place(*number).begun, *number})) number.reset();
  if (number) last_in_place_[*number % arena::comm_gpu_max] = last_number_ = *number;
  open_[stream].push_back(number);
  used_.store(true, std::memory_order_release);
}

bool GpuComm::end(std::uint32_t stream, device::Stream on) {
  const std::lock_guard lock(mutex_);
  if (open_[stream].empty()) return false;
  const Number number = open_[stream].front();
  open_[stream].pop_front();
  if (!number || timeline_->add(on, {end_channel(stream), &place(*number).ended, *number})) return true;
  // The GPU cannot tell: better early than never.
  place(*number).ended.store(*number, std::memory_order_release);
  reached(end_channel(stream), Clock::now());
  return true;
}

void GpuComm::iteration(device::Stream on) {
  if (!timeline_->add(on, {iteration_channel, nullptr, 0})) reached(iteration_channel, Clock::now());
}

// On the timeline's thread, mostly.
void GpuComm::reached(std::uint32_t channel, Clock::time_point at) {
  arena::CommWriter writer(words());
  if (channel == iteration_channel) return writer.iteration(at);
  writer.happened(channel % kinds == 0 ? CommKind::begin : CommKind::end, channel / kinds, at);
}

}  // namespace ckpt::engine
