// What a group does on its stream.
#include <poll.h>

#include <chrono>
#include <cstring>

#include "../double/launch.hpp"
#include "communicator.hpp"
#include "faults.hpp"

namespace nccl_double {
namespace {

constexpr int pause_ms = 1;

}  // namespace

// Until one of the others has sent something, or a moment has passed.
void Communicator::wait_a_little() const { ::poll(nullptr, 0, pause_ms); }

// As long as a slow rank takes; false where it was stopped meanwhile.
bool Communicator::pause() const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(faults().pause_us[rank_]);
  while (std::chrono::steady_clock::now() < until && !stopped()) wait_a_little();
  return !stopped();
}

void Communicator::post(const Operations& operations) {
  for (const Operation& operation : operations) {
    if (!pause()) return;
    if (operation.is_send && faults().corrupts[rank_]) *operation.data ^= std::byte{1};
    const std::lock_guard lock(wires_);
    if (operation.peer == rank_)
      (operation.is_send ? own_sends_ : own_receives_).push_back(operation);
    else if (operation.is_send)
      links_.at(operation.peer)->send(operation.data, operation.size_bytes);
    else
      links_.at(operation.peer)->receive(operation.data, operation.size_bytes);
    if (operation.is_send) counters().sent_bytes += operation.size_bytes;
  }
}

// Whether all of the group is done.
bool Communicator::advance() {
  for (std::size_t i = 0; i < own_sends_.size(); ++i)
    std::memcpy(own_receives_[i].data, own_sends_[i].data, own_sends_[i].size_bytes);
  own_sends_.clear();
  own_receives_.clear();
  bool is_done = true;
  const std::lock_guard lock(wires_);
  for (const auto& [peer, link] : links_) {
    const Link::State state = link->progress();
    is_done = is_done && state == Link::State::done;
    if (state == Link::State::broken) fail(nccl::remote_error);
    if (state == Link::State::mismatch && error_ == nccl::success) ++counters().mismatches;
    if (state == Link::State::mismatch) fail(nccl::invalid_usage);
  }
  return is_done;
}

std::vector<pollfd> Communicator::wires() {
  const std::lock_guard lock(wires_);
  std::vector<pollfd> all;
  for (const auto& [peer, link] : links_)
    all.push_back({link->socket(), static_cast<short>(POLLIN | (link->wants_to_write() ? POLLOUT : 0)), 0});
  return all;
}

void Communicator::run(const Operations& operations) {
  const std::lock_guard lock(running_);
  if (stopped()) return;
  post(operations);
  while (!stopped()) {
    if (faults().hangs[rank_] || failed()) {
      wait_a_little();
      continue;
    }
    if (advance()) return;
    std::vector<pollfd> waiting = wires();
    ::poll(waiting.data(), waiting.size(), pause_ms);
  }
}

}  // namespace nccl_double
