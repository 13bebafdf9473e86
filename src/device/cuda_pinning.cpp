#include "device/cuda_pinning.hpp"

#include <algorithm>
#include <iterator>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/thread.hpp"
#include "device/cuda_copy.hpp"
#include "device/pin_failure.hpp"

namespace ckpt::device {
namespace {

bool is_same(const Range& a, const Range& b) { return a.data == b.data && a.size_bytes == b.size_bytes; }

}  // namespace

CudaPinning::~CudaPinning() {
  if (thread_.joinable()) thread_.join();
}

// Call it with the lock held.
bool CudaPinning::is_pinned(const Range& range) const {
  return std::any_of(pinned_.begin(), pinned_.end(), [&](const Pinned& one) { return is_same(one.range, range); });
}

// The lock is not held while the driver works.
void CudaPinning::pin(const std::vector<Range>& ranges, const std::shared_ptr<const void>& owner) {
  const std::lock_guard one_at_a_time(one_at_a_time_);
  const ContextScope scope(context_);
  try {
    for (const Range& range : ranges) {
      {
        const Lock lock(mutex_);
        if (is_pinned(range)) continue;
      }
      Pinned made{range, owner, {}};
      device::pin(made.registrations, range);
      const Lock lock(mutex_);
      pinned_.push_back(std::move(made));
    }
  } catch (const Failure& failure) {
    const Lock lock(mutex_);
    failure_ = pin_failure(ranges, failure.what());
  }
}

void CudaPinning::prepare(std::vector<Range> ranges, std::shared_ptr<const void> owner) { pin(ranges, owner); }

void CudaPinning::begin(const std::vector<Range>& ranges) {
  {
    const Lock lock(mutex_);
    for (const Range& range : ranges)
      if (!is_pinned(range)) wanted_.push_back(range);
    if (wanted_.empty() || is_pinning_) return;
    is_pinning_ = true;
  }
  if (thread_.joinable()) thread_.join();
  try {
    thread_ = start_thread("ckpt-pin", [this] { pin_wanted(); });
  } catch (const std::system_error&) {
    pin_wanted();
  }
}

void CudaPinning::pin_wanted() {
  Lock lock(mutex_);
  while (!wanted_.empty()) {
    const std::vector<Range> ranges = std::exchange(wanted_, {});
    lock.unlock();
    pin(ranges, nullptr);
    lock.lock();
  }
  is_pinning_ = false;
  changed_.notify_all();
}

std::vector<CudaPinning::Pinned> CudaPinning::use(std::vector<Range> ranges) {
  if (thread_.joinable()) thread_.join();
  std::vector<Pinned> unused;
  {
    const Lock lock(mutex_);
    failure_.clear();
    const auto first_unused = std::stable_partition(pinned_.begin(), pinned_.end(), [&](const Pinned& one) {
      return std::any_of(ranges.begin(), ranges.end(), [&](const Range& range) { return is_same(range, one.range); });
    });
    std::move(first_unused, pinned_.end(), std::back_inserter(unused));
    pinned_.erase(first_unused, pinned_.end());
  }
  begin(ranges);
  return unused;
}

void CudaPinning::use_also(Range range) { begin({range}); }

bool CudaPinning::wait(Deadline deadline) {
  Lock lock(mutex_);
  return changed_.wait_until(lock, deadline.at(), [this] { return !is_pinning_; });
}

bool CudaPinning::covers(const Range& part) const {
  const Lock lock(mutex_);
  return std::any_of(pinned_.begin(), pinned_.end(), [&](const Pinned& one) {
    const Range& range = one.range;
    return part.data >= range.data && part.data + part.size_bytes <= range.data + range.size_bytes;
  });
}

std::string CudaPinning::failure() const {
  const Lock lock(mutex_);
  return failure_;
}

}  // namespace ckpt::device
