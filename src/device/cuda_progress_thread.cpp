#include "device/cuda_progress_thread.hpp"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "base/error.hpp"

namespace ckpt::device {
namespace {

constexpr auto exchange_pause = std::chrono::microseconds(50);
constexpr auto bytes_pause = std::chrono::milliseconds(1);
constexpr auto meeting_pause = std::chrono::milliseconds(1);
constexpr std::int64_t late_ms = 1'000;  // how late a thread may be on a busy machine without being stuck

}  // namespace

CudaReplicator::ProgressThread::ProgressThread(const Group& group, const Settings& settings, Failed failed)
    : group_(group),
      settings_(settings),
      failed_(std::move(failed)),
      due_(Deadline::in_ms(settings.meet_timeout_ms + late_ms)) {}

bool CudaReplicator::ProgressThread::wait_to_meet(Deadline deadline) {
  Lock lock(mutex_);
  changed_.wait_until(lock, deadline.at(), [this] { return has_met_ || !works_; });
  return has_met_ && works_;
}

bool CudaReplicator::ProgressThread::begin(Exchange exchange) {
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

void CudaReplicator::ProgressThread::allow(std::uint64_t number, std::uint64_t steps) {
  const Lock lock(mutex_);
  if (number != number_) return;
  if (steps <= allowed_) return;  // that many are allowed already
  allowed_ = steps;
  if (busy_ && !due_) expect_progress(true);
  changed_.notify_all();
}

void CudaReplicator::ProgressThread::finish(std::uint64_t number) {
  const Lock lock(mutex_);
  if (number != number_) return;
  finishes_ = true;
  changed_.notify_all();
}

void CudaReplicator::ProgressThread::give_up(const std::string& why) {
  const Lock lock(mutex_);
  if (stop_ || !works_) return;
  stop_ = true;
  works_ = false;
  why_ = why;
  hurry();
}

bool CudaReplicator::ProgressThread::works() const {
  const Lock lock(mutex_);
  return works_;
}

Deadline CudaReplicator::ProgressThread::stop() {
  const Lock lock(mutex_);
  stop_ = true;
  hurry();
  return end_deadline();
}

bool CudaReplicator::ProgressThread::stopped() const {
  const Lock lock(mutex_);
  return stop_;
}

Deadline CudaReplicator::ProgressThread::end_deadline() {
  if (!end_deadline_) end_deadline_ = Deadline::in_ms(settings_.end_timeout_ms);
  return *end_deadline_;
}

void CudaReplicator::ProgressThread::run(const std::shared_ptr<const Context>& context) {
  const ContextScope scope(*context);
  std::string why;
  try {
    carry_all();
  } catch (const std::exception& failure) {  // also one thrown by `fill`
    why = failure.what();
  }
  end(context, std::move(why));
  leave();
}

void CudaReplicator::ProgressThread::leave() {
  const Lock lock(mutex_);
  has_left_ = true;
  changed_.notify_all();
}

void CudaReplicator::ProgressThread::watch_thread() {
  Lock lock(mutex_);
  while (!has_left_ && !(due_ && due_->passed()))
    if (due_)
      changed_.wait_until(lock, due_->at());
    else
      changed_.wait(lock);
  if (!has_left_) end_in_its_place(std::move(lock));
}

// The stuck call returns once the abort has ended our chunk, if it waits for that. Then the thread does the rest. The
// aborting thread calls nothing of the driver before, because that might hang, too: not even to leave captures of
// graphs alone.
void CudaReplicator::ProgressThread::end_in_its_place(Lock lock) {
  if (!stop_ && why_.empty())
    why_ = "a call of NCCL or of the GPU's driver did not return in time; check whether the GPU hangs (nvidia-smi)";
  stop_ = true;
  works_ = false;
  changed_.notify_all();
  const Deadline deadline = end_deadline();
  const auto comm = comm_;
  lock.unlock();
  try {
    if (comm) LeavableThread("ckpt-repl-abort", [comm]() { comm->abort(); });
  } catch (const std::system_error&) {  // no other thread can be started for a call that may hang
    report_failure();
    comm->abort();
  }
  lock.lock();
  changed_.wait_until(lock, deadline.at(), [this] { return has_left_; });
  lock.unlock();
  report_failure();
}

// Call it with the lock held. `owes`: others wait for the next action of the progress thread.
void CudaReplicator::ProgressThread::expect_progress(bool owes) {
  due_.reset();
  if (owes) due_ = Deadline::in_ms(settings_.exchange.step_timeout_ms + late_ms);
}

// Call it with the lock held. Makes the thread end.
void CudaReplicator::ProgressThread::hurry() {
  const Deadline soon = Deadline::in_ms(late_ms);
  if (!due_ || soon.at() < due_->at()) due_ = soon;
  changed_.notify_all();
}

void CudaReplicator::ProgressThread::meet() {
  auto comm = std::make_shared<NcclComm>(group_.id, static_cast<int>(group_.members), static_cast<int>(group_.member));
  {
    const Lock lock(mutex_);
    comm_ = comm;
  }
  exchange_ = std::make_unique<CudaExchange>(std::move(comm), settings_.exchange);
  const Deadline deadline = Deadline::in_ms(settings_.meet_timeout_ms);
  while (!exchange_->meet() && !stopped()) {
    if (deadline.passed())
      throw Failure(CKPT_ERR_TIMEOUT, "not all " + std::to_string(group_.members) +
                                          " ranks of the replication group connected over NCCL within " +
                                          std::to_string(settings_.meet_timeout_ms) +
                                          " ms. Training goes on, and the next incarnation tries GPU replication "
                                          "again. If it fails again, set NCCL_DEBUG=INFO to see why");
    std::this_thread::sleep_for(meeting_pause);
  }
}

void CudaReplicator::ProgressThread::carry_all() {
  meet();
  Lock lock(mutex_);
  if (stop_) return;
  has_met_ = true;
  expect_progress(allowed_ != 0);
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

// Whether there is work. If not, the thread waits for some.
bool CudaReplicator::ProgressThread::goes_on() const {
  return stop_ || finishes_ || allowed_ > exchange_->received() || !exchange_->rests() || exchange_->over();
}

void CudaReplicator::ProgressThread::carry(Exchange exchange) {
  progress_ = std::move(exchange.progress);
  done_ = std::move(exchange.done);
  reported_progress_ = {};
  exchange_->begin(std::move(exchange.plan), std::move(exchange.fill), std::move(exchange.to));
  while (!exchange_->over()) {
    exchange_->advance();
    report_progress();
    if (!come_round()) return;
  }
  const std::lock_guard calls(calls_mutex_);
  {
    const Lock lock(mutex_);
    holds_ = busy_ = false;
    expect_progress(false);
  }
  if (!failure_reported_) done_();
}

// Returns false if the thread must end.
bool CudaReplicator::ProgressThread::come_round() {
  Lock lock(mutex_);
  expect_progress(allowed_ > exchange_->received());
  changed_.wait_for(lock, exchange_pause, [this] { return stop_; });
  const auto may_go_on = [this] { return goes_on(); };
  if (exchange_->awaits_bytes())
    changed_.wait_for(lock, bytes_pause, may_go_on);
  else
    changed_.wait(lock, may_go_on);
  if (stop_) return false;
  exchange_->allow(allowed_);
  if (finishes_) exchange_->finish();
  return true;
}

void CudaReplicator::ProgressThread::report_progress() {
  const std::pair progress(exchange_->filled(), exchange_->received());
  if (progress == std::exchange(reported_progress_, progress)) return;
  const std::lock_guard calls(calls_mutex_);
  if (!failure_reported_) progress_(progress.first, progress.second);
}

// Forgets what begin() got last: it may own memory of the GPU, and freeing that waits for NCCL, too.
void CudaReplicator::ProgressThread::end(const std::shared_ptr<const Context>& context, std::string why) {
  Lock lock(mutex_);
  works_ = false;
  if (why_.empty()) why_ = std::move(why);
  const bool holds = holds_;
  const Deadline deadline = end_deadline();
  due_ = deadline;
  hurry();
  lock.unlock();
  const auto watching = holds ? watch_copies(context, deadline) : nullptr;
  if (!watching) report_failure();
  end_nccl(deadline);
  progress_ = nullptr;
  done_ = nullptr;
  const std::optional<Exchange> never_begun = std::exchange(next_, std::nullopt);
  if (watching) watching->join(deadline);
}

// This thread must not end before NCCL has ended, whoever ends NCCL.
void CudaReplicator::ProgressThread::end_nccl(Deadline deadline) {
  Lock lock(mutex_);
  due_ = deadline;  // by then somebody must report how it ended
  const auto comm = std::exchange(comm_, nullptr);
  lock.unlock();
  exchange_.reset();
  if (comm) comm->abort();  // if no exchange has begun yet
}

// Null if no thread could be started for it.
std::unique_ptr<LeavableThread> CudaReplicator::ProgressThread::watch_copies(
    const std::shared_ptr<const Context>& context, Deadline deadline) {
  try {
    auto body = [self = shared_from_this(), context, deadline, given = exchange_->give_up()]() mutable {
      const ContextScope scope(*context);
      const CudaDrain ends = std::move(given);
      if (ends.wait(deadline)) self->let_go();
      self->report_failure();
    };
    return std::make_unique<LeavableThread>("ckpt-repl-watch", std::move(body));
  } catch (const std::exception&) {
    return nullptr;
  }
}

void CudaReplicator::ProgressThread::let_go() {
  const Lock lock(mutex_);
  holds_ = false;
}

void CudaReplicator::ProgressThread::report_failure() {
  const std::lock_guard calls(calls_mutex_);
  if (std::exchange(failure_reported_, true)) return;
  Lock lock(mutex_);
  const bool is_stuck = holds_;
  const std::string why =
      why_.empty() && is_stuck ? "the GPU did not end a copy in time; check whether the GPU hangs (nvidia-smi)" : why_;
  lock.unlock();
  if (!why.empty()) failed_(why, is_stuck);
}

}  // namespace ckpt::device
