#include "device/cuda_piece_path.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "device/cuda_handles.hpp"
#include "device/nccl_environment.hpp"
#include "device/nccl_library.hpp"

namespace ckpt::device {
namespace {

constexpr std::size_t landing_pin_max_bytes = 64ull << 30;  // larger ranges are known to be refused

nccl::UniqueId nccl_id(const Path::Id& id) {
  nccl::UniqueId made;
  static_assert(sizeof(made.internal) == sizeof(Path::Id));
  std::memcpy(made.internal, id.data(), id.size());
  return made;
}

// What the GPU may still write to.
void keep_pinned(std::vector<Registration> pinned) {
  static auto* const all = new std::vector<std::vector<Registration>>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  all->push_back(std::move(pinned));
}

// The landings' registrations. They belong to what the path's thread owns: unregistering may wait for NCCL, and where
// that does not end it is not the caller's to wait for.
class PinnedLandings {
 public:
  // Throws Failure; so does pin().
  PinnedLandings(int ordinal, Path::Failed failed) : context_(ordinal), failed_(std::move(failed)) {}
  ~PinnedLandings() {
    const ContextScope scope(context_);
    if (is_stuck_) keep_pinned(std::move(pinned_));
    pinned_.clear();
  }
  PinnedLandings(const PinnedLandings&) = delete;
  PinnedLandings& operator=(const PinnedLandings&) = delete;

  void pin(Range landings) {
    const ContextScope scope(context_);
    for (std::size_t at = 0; at < landings.size_bytes; at += landing_pin_max_bytes)
      pinned_.emplace_back(landings.data + at, std::min(landing_pin_max_bytes, landings.size_bytes - at),
                           CU_MEMHOSTREGISTER_PORTABLE);
  }
  void failed(const std::string& why, bool is_stuck) {
    is_stuck_ = is_stuck;
    failed_(why, is_stuck);
  }

 private:
  const Context context_;
  const Path::Failed failed_;  // owns what is pinned
  std::vector<Registration> pinned_;
  std::atomic<bool> is_stuck_{false};
};

}  // namespace

void CudaPiecePath::check(const char* const* environment) {
  refuse_nccl_overrides(environment);
  nccl_library();
}

Path::Id CudaPiecePath::new_id() {
  const nccl::UniqueId made = NcclComm::new_id();
  Id id;
  std::memcpy(id.data(), made.internal, id.size());
  return id;
}

CudaPiecePath::CudaPiecePath(int ordinal, const Group& group, const Settings& settings, Range landings, Failed failed) {
  check(settings.environment);
  const auto pinned = std::make_shared<PinnedLandings>(ordinal, std::move(failed));
  pinned->pin(landings);
  const CudaPath::Settings path_settings{
      {settings.reserved_bytes, settings.step_timeout_ms}, settings.meet_timeout_ms, settings.end_timeout_ms};
  path_ = std::make_unique<CudaPath>(
      ordinal, CudaPath::Group{nccl_id(group.id), group.members, group.member}, path_settings, settings.environment,
      [pinned](const std::string& why, bool is_stuck) { pinned->failed(why, is_stuck); });
}

bool CudaPiecePath::begin(Exchange exchange) {
  const auto fill = [from = exchange.from](std::uint64_t first_byte, std::uint64_t size_bytes, CUdeviceptr to,
                                           CUstream stream) {
    CKPT_CUDA(cuMemcpyHtoDAsync_v2, to, from + first_byte, size_bytes, stream);
  };
  return path_->begin({exchange.number, std::move(exchange.plan), fill, std::move(exchange.to),
                       std::move(exchange.progress), std::move(exchange.done)});
}

}  // namespace ckpt::device
