#include "device/cuda_pinning.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.hpp"
#include "base/thread.hpp"
#include "device/cuda_copy.hpp"
#include "device/numa_node.hpp"
#include "device/pin_failure.hpp"

namespace ckpt::device {
namespace {

// So that a thread of training that waits for the driver's lock gets it.
constexpr auto piece_pause = std::chrono::milliseconds(1);

// What the GPU may use for good.
template <class Kept>
void keep(Kept kept) {
  static std::mutex mutex;
  static auto* const all = new std::vector<Kept>;
  const std::lock_guard lock(mutex);
  all->push_back(std::move(kept));
}

bool is_same(const Range& a, const Range& b) { return a.data == b.data && a.size_bytes == b.size_bytes; }

}  // namespace

CudaPinning::CudaPinning(const Context& context, const Retries& retries)
    : context_(context), retries_(retries), numa_node_(closest_numa_node(context.device())) {
  thread_ = start_thread("ckpt-pin", [this] { run(); });
}

CudaPinning::~CudaPinning() {
  {
    const Lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (is_kept_) {
    keep(std::exchange(wanted_, {}));
    keep(std::exchange(unused_, {}));
    keep(std::exchange(retired_, {}));
  }
  const ContextScope scope(context_);
  retired_.clear();
  unused_.clear();
  wanted_.clear();
}

// Moves the range from `known` to the wanted ones, with what is pinned of it.
void CudaPinning::want(const Range& range, const Owner& owner, Ranges& known) {
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const Pinned& one) { return is_same(one.range, range); });
  if (found == known.end()) {
    wanted_.push_back({range, owner, 0, {}});
    return;
  }
  found->owner = owner;
  wanted_.push_back(std::move(*found));
  known.erase(found);
}

void CudaPinning::try_anew() {
  ++round_;
  refusal_.clear();
  refusals_ = 0;
  next_try_.reset();
  changed_.notify_all();
}

void CudaPinning::prepare(const std::vector<Range>& ranges, const Owner& owner) {
  for (const Range& range : ranges) use_also(range, owner);
}

void CudaPinning::use(const std::vector<Range>& ranges, const Owner& owner) {
  const Lock lock(mutex_);
  Ranges known = std::exchange(wanted_, {});
  std::move(unused_.begin(), unused_.end(), std::back_inserter(known));
  for (const Range& range : ranges) want(range, owner, known);
  unused_ = std::move(known);
  try_anew();
}

void CudaPinning::use_also(const Range& range, const Owner& owner) {
  const Lock lock(mutex_);
  if (std::any_of(wanted_.begin(), wanted_.end(), [&](const Pinned& one) { return is_same(one.range, range); })) return;
  want(range, owner, unused_);
  try_anew();
}

void CudaPinning::free(RetiredMemory memory) {
  if (memory.empty()) return;
  const Lock lock(mutex_);
  retired_.push_back(std::move(memory));
  changed_.notify_all();
}

void CudaPinning::keep_all(bool kept) {
  const Lock lock(mutex_);
  is_kept_ = kept;
  changed_.notify_all();
}

const CudaPinning::Pinned* CudaPinning::unfinished() const {
  const auto found = std::find_if(wanted_.begin(), wanted_.end(),
                                  [](const Pinned& one) { return one.size_bytes < one.range.size_bytes; });
  return found == wanted_.end() ? nullptr : &*found;
}
CudaPinning::Pinned* CudaPinning::unfinished() { return const_cast<Pinned*>(std::as_const(*this).unfinished()); }

bool CudaPinning::has_garbage() const { return !is_kept_ && !(unused_.empty() && retired_.empty()); }

bool CudaPinning::is_due() const {
  return unfinished() != nullptr && !is_given_up() && (!next_try_ || next_try_->passed());
}

void CudaPinning::run() {
  Lock lock(mutex_);
  for (;;) {
    const auto has_work = [this] { return stop_ || has_garbage() || is_due(); };
    if (next_try_ && unfinished() != nullptr && !is_given_up())
      changed_.wait_until(lock, next_try_->at(), has_work);
    else
      changed_.wait(lock, has_work);
    if (stop_) return;
    // Garbage first: how much a process may pin can be limited.
    if (has_garbage())
      collect_garbage(lock);
    else if (is_due())
      pin_piece(lock);
  }
}

// The lock is not held while the driver works.
void CudaPinning::collect_garbage(Lock& lock) {
  Ranges unused = std::exchange(unused_, {});
  auto retired = std::exchange(retired_, {});
  lock.unlock();
  {
    const ContextScope scope(context_);
    unused.clear();
    retired.clear();
  }
  lock.lock();
}

// The lock is not held while the driver works. Meanwhile `owner` keeps the range mapped.
void CudaPinning::pin_piece(Lock& lock) {
  const Pinned& next = *unfinished();
  const Range range = next.range;
  const Owner owner = next.owner;
  const std::uint64_t round = round_;
  std::byte* const data = range.data + next.size_bytes;
  const std::size_t size_bytes = first_part_bytes(data, range.size_bytes - next.size_bytes);
  lock.unlock();
  const std::string why_elsewhere = numa_node_ < 0 ? "" : move_to_numa_node({data, size_bytes}, numa_node_);
  std::optional<Registration> made;
  std::string why;
  {
    const ContextScope scope(context_);
    try {
      made.emplace(data, size_bytes, CU_MEMHOSTREGISTER_PORTABLE);
    } catch (const Failure& failure) {
      why = failure.what();
    }
  }
  lock.lock();
  if (!why_elsewhere.empty()) could_not_move(why_elsewhere);
  if (!made) return refused(lock, round, why);
  pinned(range, owner, std::move(*made), size_bytes);
  if (unfinished() != nullptr) changed_.wait_for(lock, piece_pause, [this] { return stop_; });
}

// use() may have dropped the range meanwhile.
void CudaPinning::pinned(const Range& range, const Owner& owner, Registration piece, std::size_t size_bytes) {
  refusals_ = 0;
  next_try_.reset();
  const auto found =
      std::find_if(wanted_.begin(), wanted_.end(), [&](const Pinned& one) { return is_same(one.range, range); });
  if (found == wanted_.end()) unused_.push_back({range, owner, 0, {}});
  Pinned* const of = found == wanted_.end() ? &unused_.back() : &*found;
  of->registrations.push_back(std::move(piece));
  of->size_bytes += size_bytes;
  if (unfinished() == nullptr) {
    refusal_.clear();
    if (std::exchange(was_refused_, false))
      news_ = "the memory for checkpoints is pinned for the GPU now, after the driver had refused; snapshots go on";
  }
  changed_.notify_all();
}

void CudaPinning::refused(Lock& lock, std::uint64_t round, const std::string& why) {
  std::vector<Range> ranges;
  for (const Pinned& one : wanted_)
    if (one.size_bytes < one.range.size_bytes) ranges.push_back(one.range);
  lock.unlock();
  std::string text = pin_failure(ranges, why);
  lock.lock();
  if (round != round_) return;  // other ranges are wanted by now
  ++refusals_;
  was_refused_ = true;
  pause_ms_ = refusals_ == 1 ? retries_.first_pause_ms : std::min(2 * pause_ms_, retries_.longest_pause_ms);
  next_try_ = Deadline::in_ms(pause_ms_);
  refusal_ = std::move(text);
  changed_.notify_all();
}

void CudaPinning::could_not_move(const std::string& why) {
  if (std::exchange(has_numa_notice_, true)) return;
  numa_news_ = "the kernel refused to move the memory for checkpoints to NUMA node " + std::to_string(numa_node_) +
               ", which is the closest to the GPU (" + why +
               "): copies from the GPU may be slower. In a container, allow the system call mbind";
}

bool CudaPinning::wait(Deadline deadline) const {
  Lock lock(mutex_);
  return changed_.wait_until(lock, deadline.at(), [this] { return unfinished() == nullptr || !refusal_.empty(); });
}

std::string CudaPinning::progress() const {
  const Lock lock(mutex_);
  std::uint64_t pinned_bytes = 0, all_bytes = 0;
  for (const Pinned& one : wanted_) {
    pinned_bytes += one.size_bytes;
    all_bytes += one.range.size_bytes;
  }
  return std::to_string(all_bytes == 0 ? 100 : 100 * pinned_bytes / all_bytes) + " % of it is pinned for the GPU";
}

bool CudaPinning::covers(const Range& part) const {
  const Lock lock(mutex_);
  return std::any_of(wanted_.begin(), wanted_.end(), [&](const Pinned& one) {
    return part.data >= one.range.data && part.data + part.size_bytes <= one.range.data + one.size_bytes;
  });
}

std::string CudaPinning::failure() const {
  const Lock lock(mutex_);
  if (refusal_.empty()) return {};
  if (!is_given_up()) return refusal_ + "; the engine tries again in the background";
  return refusal_ + "; the engine gave up after " + std::to_string(refusals_) +
         " tries: restart the job once the memory can be pinned";
}

std::optional<std::string> CudaPinning::take_news() {
  const Lock lock(mutex_);
  return std::exchange(news_ ? news_ : numa_news_, std::nullopt);
}

}  // namespace ckpt::device
