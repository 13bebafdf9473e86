#include "sim/event_queue.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace ckpt::sim {

bool EventQueue::later(const Entry& left, const Entry& right) {
  return std::tie(left.time, left.sequence) > std::tie(right.time, right.sequence);
}

void EventQueue::after(TimeMs delay_ms, Action action) {
  heap_.push_back({now_ + std::max<TimeMs>(delay_ms, 0), sequence_++, std::move(action)});
  std::push_heap(heap_.begin(), heap_.end(), later);
}

bool EventQueue::step() {
  if (heap_.empty()) return false;
  std::pop_heap(heap_.begin(), heap_.end(), later);
  Entry entry = std::move(heap_.back());
  heap_.pop_back();
  now_ = entry.time;
  ++steps_;
  entry.action();
  return true;
}

}  // namespace ckpt::sim
