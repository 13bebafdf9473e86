#include "device/cuda_timestamps.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/thread.hpp"

namespace ckpt::device {
namespace {

constexpr auto poll_pause = std::chrono::microseconds(500);
constexpr auto anchor_pause = std::chrono::seconds(1);
constexpr auto first_anchor_limit = std::chrono::seconds(10);
constexpr auto anchor_limit = std::chrono::microseconds(200);
constexpr std::size_t pending_max = 4096;  // per track

}  // namespace

CudaTimestamps::Resources::Resources(const Range& range, std::shared_ptr<void> words_owner)
    : owner(std::move(words_owner)),
      words(range.data, range.size_bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP) {}

CudaTimestamps::CudaTimestamps(int ordinal, Range words, std::shared_ptr<void> owner, Reached reached)
    : context_(ordinal), range_(words), reached_(std::move(reached)) {
  const ContextScope scope(context_);
  auto resources = std::make_unique<Resources>(words, std::move(owner));
  words_on_device_ = resources->words.on_device();
  // No attribute tells whether this works, so this tries it and writes the word's present value.
  auto* const first = reinterpret_cast<std::atomic<std::uint32_t>*>(words.data);
  write(resources->stream, {0, first, first->load()});
  resources_ = std::move(resources);
  if (!drop_anchor(first_anchor_limit)) {
    keep_for_good(std::move(resources_));
    throw Failure(CKPT_ERR_TIMEOUT,
                  "the GPU did not answer within ten seconds; check whether the GPU hangs (nvidia-smi)");
  }
  thread_ = start_thread("ckpt-timeline", [this] { run(); });
}

CudaTimestamps::~CudaTimestamps() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  const ContextScope scope(context_);
  if (!idle()) keep_for_good(std::move(resources_));
  resources_.reset();
}

void CudaTimestamps::keep_for_good(std::unique_ptr<Resources> resources) {
  static std::mutex mutex;
  static auto* const all = new std::vector<std::unique_ptr<Resources>>;
  const std::lock_guard lock(mutex);
  all->push_back(std::move(resources));
}

CUdeviceptr CudaTimestamps::device_address(const void* word) const {
  return words_on_device_ + static_cast<CUdeviceptr>(static_cast<const std::byte*>(word) - range_.data);
}

void CudaTimestamps::write(CUstream stream, const Point& point) const {
  if (point.word != nullptr) CKPT_CUDA(cuStreamWriteValue32, stream, device_address(point.word), point.value, 0);
}

bool CudaTimestamps::add(Stream stream, const Point& point) {
  const auto handle = static_cast<CUstream>(stream);
  const ContextScope scope(context_);
  {
    const std::lock_guard lock(mutex_);
    auto& pending = resources_->pending[point.track];
    if (dead_ || pending.size() == pending_max || is_captured(handle)) return false;
    try {
      auto& spare = resources_->spare;
      if (spare.empty()) spare.emplace_back(Event::Time::with);
      spare.back().record(handle);
      write(handle, point);
      pending.push_back(std::move(spare.back()));
      spare.pop_back();
    } catch (const Failure&) {
      return false;
    }
  }
  changed_.notify_all();
  return true;
}

// Whether there is an anchor now. If not, the previous one stays in use.
bool CudaTimestamps::drop_anchor(std::chrono::microseconds limit) {
  const auto begin = Clock::now();
  anchor_again_at_ = begin + anchor_pause;
  const Event& next = resources_->next_anchor;
  next.record(resources_->stream);
  auto end = begin;
  for (bool reached = false; !reached; end = Clock::now()) {
    reached = next.reached();
    if (Clock::now() - begin > limit) return false;
  }
  anchored_at_ = begin + (end - begin) / 2;
  std::swap(resources_->anchor, resources_->next_anchor);
  return true;
}

Clock::time_point CudaTimestamps::time_of(const Event& event) const {
  const std::chrono::duration<double, std::milli> since(resources_->anchor.ms_until(event));
  return anchored_at_ + std::chrono::duration_cast<Clock::duration>(since);
}

bool CudaTimestamps::idle() const {
  const auto& pending = resources_->pending;
  return std::all_of(pending.begin(), pending.end(), [](const auto& events) { return events.empty(); });
}

void CudaTimestamps::collect() {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t track = 0; track < tracks_max; ++track) {
    auto& events = resources_->pending[track];
    while (!events.empty() && events.front().reached()) {
      readings_.push_back({time_of(events.front()), track});
      resources_->spare.push_back(std::move(events.front()));
      events.pop_front();
    }
  }
}

void CudaTimestamps::notify(Clock::time_point until) {
  const auto earlier = [](const Reading& a, const Reading& b) { return a.at < b.at; };
  std::stable_sort(readings_.begin(), readings_.end(), earlier);
  const auto end = std::upper_bound(readings_.begin(), readings_.end(), Reading{until, 0}, earlier);
  for (auto reading = readings_.begin(); reading != end; ++reading) reached_(reading->track, reading->at);
  readings_.erase(readings_.begin(), end);
}

void CudaTimestamps::look(bool is_last) {
  // This call reports every point that the GPU had reached when the call began. Points that the GPU reaches during the
  // call may have to wait for the next one.
  const auto begun_at = Clock::now();
  try {
    collect();
    if (begun_at >= anchor_again_at_) drop_anchor(anchor_limit);
  } catch (const Failure&) {
    const std::lock_guard lock(mutex_);
    dead_ = true;  // no time can be read any more, nor that of any pending point
    for (auto& events : resources_->pending) events.clear();
  }
  notify(is_last ? Clock::time_point::max() : begun_at);
}

void CudaTimestamps::run() {
  const ContextScope scope(context_);
  for (bool is_last = false; !is_last;) {
    {
      Lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || !idle() || !readings_.empty(); });
      is_last = stop_;
    }
    look(is_last);
    Lock lock(mutex_);
    changed_.wait_for(lock, poll_pause, [this] { return stop_; });
  }
}

}  // namespace ckpt::device
