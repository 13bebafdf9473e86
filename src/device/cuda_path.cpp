#include "device/cuda_path.hpp"

#include <utility>

#include "base/error.hpp"
#include "base/thread.hpp"

namespace ckpt::device {
namespace {

constexpr auto exchange_pause = std::chrono::microseconds(50);
constexpr auto meeting_pause = std::chrono::milliseconds(1);
constexpr std::int64_t give_up_timeout_ms = 10'000;

}  // namespace

CudaPath::CudaPath(int ordinal, const Group& group, const Settings& settings, Failed failed)
    : context_(ordinal), group_(group), settings_(settings), failed_(std::move(failed)) {
  thread_ = start_thread("ckpt-path", [this] { run(); });
}

CudaPath::~CudaPath() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool CudaPath::begin(Exchange exchange) {
  const std::lock_guard lock(mutex_);
  if (!works_ || busy_) return false;
  busy_ = true;
  allowed_ = 0;
  next_ = std::move(exchange);
  changed_.notify_all();
  return true;
}

void CudaPath::allow(std::uint64_t steps) {
  const std::lock_guard lock(mutex_);
  allowed_ = steps;
  changed_.notify_all();
}

bool CudaPath::works() const {
  const std::lock_guard lock(mutex_);
  return works_;
}

bool CudaPath::stopped() const {
  const std::lock_guard lock(mutex_);
  return stop_;
}

void CudaPath::run() {
  const ContextScope scope(context_);
  leave_graph_captures_alone();
  std::string why;
  try {
    carry_all();
  } catch (const Failure& failure) {
    why = failure.what();
  }
  end(why);
  exchange_.reset();
}

void CudaPath::end(std::string why) {
  const bool is_stuck = exchange_ && !exchange_->over() && !exchange_->abandon(Deadline::in_ms(give_up_timeout_ms));
  {
    const std::lock_guard lock(mutex_);
    works_ = false;
    next_.reset();
  }
  if (is_stuck && why.empty()) why = "the GPU did not end a copy; is it hung?";
  if (!why.empty()) failed_(why, is_stuck);
}

void CudaPath::meet() {
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

void CudaPath::carry_all() {
  meet();
  for (;;) {
    Lock lock(mutex_);
    changed_.wait(lock, [this] { return stop_ || next_; });
    if (stop_) return;
    Exchange exchange = std::move(*next_);
    next_.reset();
    lock.unlock();
    carry(std::move(exchange));
  }
}

// Whether there is something to look after; else that is waited for.
bool CudaPath::goes_on() const { return stop_ || allowed_ > exchange_->landed() || exchange_->over(); }

void CudaPath::carry(Exchange exchange) {
  exchange_->begin(std::move(exchange.plan), std::move(exchange.fill), std::move(exchange.to));
  while (!exchange_->over()) {
    exchange_->advance();
    Lock lock(mutex_);
    changed_.wait_for(lock, exchange_pause, [this] { return stop_; });
    changed_.wait(lock, [this] { return goes_on(); });
    if (stop_) return;
    exchange_->allow(allowed_);
  }
  {
    const std::lock_guard lock(mutex_);
    busy_ = false;
  }
  exchange.done();
}

}  // namespace ckpt::device
