#include "device/cuda_carrier.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.hpp"

namespace ckpt::device {
namespace {

constexpr auto exchange_pause = std::chrono::microseconds(50);
constexpr auto meeting_pause = std::chrono::milliseconds(1);

}  // namespace

CudaPath::Carrier::Carrier(const Group& group, const Settings& settings, Failed failed)
    : group_(group), settings_(settings), failed_(std::move(failed)) {}

bool CudaPath::Carrier::wait_to_meet(Deadline deadline) {
  Lock lock(mutex_);
  changed_.wait_until(lock, deadline.at(), [this] { return has_met_ || !works_; });
  return has_met_ && works_;
}

bool CudaPath::Carrier::begin(Exchange exchange) {
  const Lock lock(mutex_);
  if (!works_ || busy_) return false;
  busy_ = true;
  number_ = exchange.number;
  allowed_ = 0;
  finishes_ = false;
  next_ = std::move(exchange);
  changed_.notify_all();
  return true;
}

void CudaPath::Carrier::allow(std::uint64_t number, std::uint64_t steps) {
  const Lock lock(mutex_);
  if (number != number_) return;
  allowed_ = std::max(allowed_, steps);  // what was allowed is under way
  changed_.notify_all();
}

void CudaPath::Carrier::finish(std::uint64_t number) {
  const Lock lock(mutex_);
  if (number != number_) return;
  finishes_ = true;
  changed_.notify_all();
}

void CudaPath::Carrier::give_up(const std::string& why) {
  const Lock lock(mutex_);
  if (stop_ || !works_) return;
  stop_ = true;
  works_ = false;
  why_ = why;
  changed_.notify_all();
}

bool CudaPath::Carrier::works() const {
  const Lock lock(mutex_);
  return works_;
}

Deadline CudaPath::Carrier::stop() {
  const Lock lock(mutex_);
  stop_ = true;
  changed_.notify_all();
  return end_deadline();
}

bool CudaPath::Carrier::stopped() const {
  const Lock lock(mutex_);
  return stop_;
}

Deadline CudaPath::Carrier::end_deadline() {
  if (!end_deadline_) end_deadline_ = Deadline::in_ms(settings_.end_timeout_ms);
  return *end_deadline_;
}

void CudaPath::Carrier::run(const std::shared_ptr<const Context>& context) {
  const ContextScope scope(*context);
  leave_graph_captures_alone();
  std::string why;
  try {
    carry_all();
  } catch (const std::exception& failure) {  // of `fill`, too
    why = failure.what();
  }
  end(context, std::move(why));
}

void CudaPath::Carrier::meet() {
  auto comm = std::make_unique<NcclComm>(group_.id, static_cast<int>(group_.members), static_cast<int>(group_.member));
  exchange_ = std::make_unique<CudaExchange>(std::move(comm), settings_.exchange);
  const Deadline deadline = Deadline::in_ms(settings_.meet_timeout_ms);
  while (!exchange_->meet() && !stopped()) {
    if (deadline.passed())
      throw Failure(CKPT_ERR_TIMEOUT, "the ranks that hold each other's copies did not meet over NCCL within " +
                                          std::to_string(settings_.meet_timeout_ms) + " ms");
    std::this_thread::sleep_for(meeting_pause);
  }
}

void CudaPath::Carrier::carry_all() {
  meet();
  Lock lock(mutex_);
  if (stop_) return;
  has_met_ = true;
  changed_.notify_all();
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || next_; });
    if (stop_) return;
    Exchange exchange = std::move(*next_);
    next_.reset();
    holds_ = true;
    lock.unlock();
    carry(std::move(exchange));
    lock.lock();
  }
}

// Whether there is something to look after; else that is waited for.
bool CudaPath::Carrier::goes_on() const {
  return stop_ || finishes_ || allowed_ > exchange_->landed() || !exchange_->rests() || exchange_->over();
}

void CudaPath::Carrier::carry(Exchange exchange) {
  progress_ = std::move(exchange.progress);
  done_ = std::move(exchange.done);
  told_progress_ = {};
  exchange_->begin(std::move(exchange.plan), std::move(exchange.fill), std::move(exchange.to));
  while (!exchange_->over()) {
    exchange_->advance();
    tell_progress();
    Lock lock(mutex_);
    changed_.wait_for(lock, exchange_pause, [this] { return stop_; });
    changed_.wait(lock, [this] { return goes_on(); });
    if (stop_) return;
    exchange_->allow(allowed_);
    if (finishes_) exchange_->finish();
  }
  const std::lock_guard calls(calls_mutex_);
  {
    const Lock lock(mutex_);
    holds_ = busy_ = false;
  }
  if (!told_) done_();
}

void CudaPath::Carrier::tell_progress() {
  const std::pair progress(exchange_->filled(), exchange_->landed());
  if (progress == std::exchange(told_progress_, progress)) return;
  const std::lock_guard calls(calls_mutex_);
  if (!told_) progress_(progress.first, progress.second);
}

// What was given is forgotten last: it may own memory of the GPU, and freeing that waits for NCCL, too.
void CudaPath::Carrier::end(const std::shared_ptr<const Context>& context, std::string why) {
  Lock lock(mutex_);
  works_ = false;
  changed_.notify_all();
  if (why_.empty()) why_ = std::move(why);
  const bool holds = holds_;
  const Deadline deadline = end_deadline();
  lock.unlock();
  const auto watching = holds ? watch(context, deadline) : nullptr;
  if (!watching) tell();
  exchange_.reset();
  progress_ = nullptr;
  done_ = nullptr;
  const std::optional<Exchange> never_begun = std::exchange(next_, std::nullopt);
  if (watching) watching->join(deadline);
}

// Null where there is no thread for it.
std::unique_ptr<LeavableThread> CudaPath::Carrier::watch(const std::shared_ptr<const Context>& context,
                                                         Deadline deadline) {
  try {
    auto body = [self = shared_from_this(), context, deadline, given = exchange_->give_up()]() mutable {
      const ContextScope scope(*context);
      leave_graph_captures_alone();
      const CudaStillness ends = std::move(given);
      if (ends.wait(deadline)) self->let_go();
      self->tell();
    };
    return std::make_unique<LeavableThread>("ckpt-path-watch", std::move(body));
  } catch (const std::exception&) {
    return nullptr;
  }
}

void CudaPath::Carrier::let_go() {
  const Lock lock(mutex_);
  holds_ = false;
}

void CudaPath::Carrier::tell() {
  const std::lock_guard calls(calls_mutex_);
  if (std::exchange(told_, true)) return;
  Lock lock(mutex_);
  const bool is_stuck = holds_;
  const std::string why = why_.empty() && is_stuck ? "the GPU did not end a copy; is it hung?" : why_;
  lock.unlock();
  if (!why.empty()) failed_(why, is_stuck);
}

}  // namespace ckpt::device
