#include "net/async_gate.hpp"

#include <sys/eventfd.h>
#include <ucs/async/async_fwd.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "base/error.hpp"

namespace ckpt::net {
namespace {

// The longest pause. The actions that need a pause take milliseconds. If one takes longer, something else is wrong, and
// waiting does not help.
constexpr std::chrono::seconds wait_limit{5};

}  // namespace

AsyncGate::AsyncGate() : doorbell_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!doorbell_) throw_errno(CKPT_ERR_SYSTEM, "cannot create an eventfd");
  const auto handler = [](int, ucs_event_set_types_t, void* gate) { static_cast<AsyncGate*>(gate)->pass(); };
  const ucs_status_t status = ucs_async_set_event_handler(UCS_ASYNC_MODE_THREAD_SPINLOCK, doorbell_.get(),
                                                          UCS_EVENT_SET_EVREAD, handler, this, nullptr);
  if (status != UCS_OK) {
    throw Failure(CKPT_ERR_SYSTEM, std::string("UCX cannot watch a descriptor: ") + ucs_status_string(status) +
                                       "; raise the limits of open files and of threads (ulimit -n, ulimit -u)");
  }
}

AsyncGate::~AsyncGate() {
  ucs_async_remove_handler(doorbell_.get(), 1);  // waits until the handler has returned
  const std::lock_guard left(mutex_);            // shows ThreadSanitizer that the handler has returned
}

void AsyncGate::close() {
  std::unique_lock lock(mutex_);
  state_ = State::closing;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(doorbell_.get(), &one, sizeof one);
  changed_.wait_for(lock, wait_limit, [this] { return state_ == State::closed; });
}

void AsyncGate::open() {
  const std::lock_guard lock(mutex_);
  state_ = State::open;
  changed_.notify_all();
}

// Runs on the asynchronous thread.
void AsyncGate::pass() {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto read = ::read(doorbell_.get(), &count, sizeof count);
  std::unique_lock lock(mutex_);
  while (state_ == State::closing) {
    state_ = State::closed;
    changed_.notify_all();
    changed_.wait_for(lock, wait_limit, [this] { return state_ != State::closed; });
  }
}

}  // namespace ckpt::net
