#include "streams.hpp"

#include <cuda.h>

#include <algorithm>

namespace cuda_double {

Stream::Stream(Streams& all, bool is_blocking) : blocking(is_blocking), all_(all), thread_([this] { work(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(all_.mutex_);
    ending_ = true;
    all_.changed_.notify_all();
  }
  thread_.join();
}

bool Stream::head_may_begin() const {
  if (queue_.empty()) return false;
  const Entry& head = queue_.front();
  if (all_.death_ != 0) return true;
  const auto is_past = [](const Position& position) { return position.stream->done_ >= position.number; };
  if (!std::all_of(head.after.begin(), head.after.end(), is_past)) return false;
  return (!head.operation.may_begin || head.operation.may_begin()) && all_.admit(head.operation);
}

void Stream::work() {
  std::unique_lock lock(all_.mutex_);
  for (;;) {
    all_.changed_.wait(lock, [this] { return head_may_begin() || (ending_ && queue_.empty()); });
    if (queue_.empty()) return;
    Entry entry = std::move(queue_.front());
    const bool dropped = all_.death_ != 0;
    lock.unlock();
    if (!dropped) entry.operation.run();
    entry.operation.run = nullptr;  // what it owns ends before it counts as done
    lock.lock();
    queue_.pop_front();
    ++done_;
    if (!dropped) all_.finish(entry.operation.kind);
    all_.changed_.notify_all();
  }
}

Streams::Streams() { legacy_ = add(true); }

Streams::~Streams() {
  kill(CUDA_ERROR_DEINITIALIZED);
  streams_.clear();
}

Stream* Streams::add(bool blocking) {
  auto stream = std::make_unique<Stream>(*this, blocking);
  Stream* handle = stream.get();
  const std::lock_guard lock(mutex_);
  streams_.emplace(handle, std::move(stream));
  return handle;
}

Stream* Streams::create(bool blocking) { return add(blocking); }

void Streams::destroy(Stream* stream) {
  std::unique_ptr<Stream> ending;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stream->queue_.empty(); });
    const auto found = streams_.find(stream);
    ending = std::move(found->second);
    streams_.erase(found);
    // Nobody may look at it any more.
    for (auto& [handle, other] : streams_)
      for (auto& entry : other->queue_)
        std::erase_if(entry.after, [&](const auto& position) { return position.stream == stream; });
  }
}

Stream* Streams::find(const void* handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return legacy_;
  if (handle == CU_STREAM_PER_THREAD) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = of_threads_.find(std::this_thread::get_id());
      if (found != of_threads_.end()) return found->second;
    }
    Stream* const created = add(true);
    const std::lock_guard lock(mutex_);
    return of_threads_[std::this_thread::get_id()] = created;
  }
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(handle);
  return found == streams_.end() ? nullptr : found->second.get();
}

void Streams::enqueue(Stream& stream, Operation operation) {
  std::unique_lock lock(mutex_);
  const auto has_room = [&] { return stream.queue_.size() < queue_depth_ || death_ != 0; };
  if (!has_room()) ++queue_full_;
  changed_.wait(lock, has_room);
  Stream::Entry entry{std::move(operation), {}};
  if (&stream == legacy_) {
    for (const auto& [handle, other] : streams_)
      if (other.get() != legacy_ && other->blocking) entry.after.push_back({other.get(), other->enqueued_});
  } else if (stream.blocking) {
    entry.after.push_back({legacy_, legacy_->enqueued_});
  }
  stream.queue_.push_back(std::move(entry));
  ++stream.enqueued_;
  changed_.notify_all();
}

void Streams::record(Stream& stream, Event& event) {
  auto recording = std::make_shared<Recording>();
  {
    const std::lock_guard lock(mutex_);
    event.newest = recording;
  }
  enqueue(stream, {other_work,
                   [this, recording] {
                     const std::lock_guard lock(mutex_);
                     recording->reached = true;
                     recording->reached_at = std::chrono::steady_clock::now();
                   },
                   nullptr});
}

void Streams::wait(Stream& stream, const Event& event) {
  std::shared_ptr<Recording> recording;
  {
    const std::lock_guard lock(mutex_);
    recording = event.newest;
  }
  if (recording) enqueue(stream, {other_work, [] {}, [recording] { return recording->reached; }});
}

bool Streams::reached(const Event& event) {
  const std::lock_guard lock(mutex_);
  return !event.newest || event.newest->reached;
}

std::shared_ptr<const Recording> Streams::newest_reached(const Event& event) {
  const std::lock_guard lock(mutex_);
  return event.newest && event.newest->reached ? event.newest : nullptr;
}

bool Streams::idle(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  return stream.queue_.empty();
}

void Streams::synchronize(const Stream& stream) {
  std::unique_lock lock(mutex_);
  const std::uint64_t number = stream.enqueued_;
  changed_.wait(lock, [&] { return stream.done_ >= number || death_ != 0; });
}

void Streams::synchronize(const Event& event) {
  std::unique_lock lock(mutex_);
  const auto recording = event.newest;
  changed_.wait(lock, [&] { return !recording || recording->reached || death_ != 0; });
}

bool Streams::all_idle() const {
  return std::all_of(streams_.begin(), streams_.end(), [](const auto& entry) { return entry.second->queue_.empty(); });
}

void Streams::synchronize_all() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return all_idle() || death_ != 0; });
}

bool Streams::admit(const Operation& operation) {
  Kind& kind = kinds_[operation.kind];
  if (kind.held && kind.let == 0) return false;
  if (kind.held) --kind.let;
  if (kind.kill_in != 0 && --kind.kill_in == 0) {
    death_ = kind.kill_result;
    changed_.notify_all();
  }
  return true;
}

void Streams::finish(int kind) { ++kinds_[kind].done; }

void Streams::hold(int kind, bool held) {
  const std::lock_guard lock(mutex_);
  kinds_[kind].held = held;
  kinds_[kind].let = 0;
  changed_.notify_all();
}

void Streams::let(int kind, std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  kinds_[kind].let += count;
  changed_.notify_all();
}

std::uint64_t Streams::done(int kind) {
  const std::lock_guard lock(mutex_);
  return kinds_[kind].done;
}

void Streams::queue_depth(std::uint64_t operations) {
  const std::lock_guard lock(mutex_);
  queue_depth_ = operations;
  changed_.notify_all();
}

std::uint64_t Streams::queue_full() {
  const std::lock_guard lock(mutex_);
  return queue_full_;
}

int Streams::death() {
  const std::lock_guard lock(mutex_);
  return death_;
}

void Streams::kill(int result) {
  const std::lock_guard lock(mutex_);
  death_ = result;
  changed_.notify_all();
}

void Streams::kill_at(int kind, std::uint64_t countdown, int result) {
  const std::lock_guard lock(mutex_);
  kinds_[kind].kill_in = countdown;
  kinds_[kind].kill_result = result;
}

void Streams::reset() {
  std::unique_lock lock(mutex_);
  // What a death drops is dropped before the next incarnation: it might wait for what was dropped.
  if (death_ != 0) changed_.wait(lock, [this] { return all_idle(); });
  for (Kind& kind : kinds_) kind = {false, 0, kind.done, 0, 0};
  queue_depth_ = 1024;
  queue_full_ = 0;
  death_ = 0;
  changed_.notify_all();
}

}  // namespace cuda_double
