#include "device/cuda_piece_path.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/error.hpp"

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

}  // namespace

Path::Id CudaPiecePath::new_id() {
  const nccl::UniqueId made = NcclComm::new_id();
  Id id;
  std::memcpy(id.data(), made.internal, id.size());
  return id;
}

CudaPiecePath::CudaPiecePath(int ordinal, const Group& group, const Settings& settings, Range landings, Failed failed)
    : context_(ordinal) {
  const ContextScope scope(context_);
  try {
    pin(landings);
    const CudaPath::Settings path_settings{
        {settings.reserved_bytes, settings.step_timeout_ms}, settings.meet_timeout_ms, settings.end_timeout_ms};
    path_ = std::make_unique<CudaPath>(ordinal, CudaPath::Group{nccl_id(group.id), group.members, group.member},
                                       path_settings, settings.environment,
                                       [this, failed = std::move(failed)](const std::string& why, bool is_stuck) {
                                         is_stuck_ = is_stuck;
                                         failed(why, is_stuck);
                                       });
  } catch (const Failure&) {
    pinned_.clear();  // while the context is current
    throw;
  }
}

void CudaPiecePath::pin(Range landings) {
  for (std::size_t at = 0; at < landings.size_bytes; at += landing_pin_max_bytes)
    pinned_.emplace_back(landings.data + at, std::min(landing_pin_max_bytes, landings.size_bytes - at),
                         CU_MEMHOSTREGISTER_PORTABLE);
}

CudaPiecePath::~CudaPiecePath() {
  path_.reset();
  const ContextScope scope(context_);
  if (is_stuck_) keep_pinned(std::move(pinned_));
  pinned_.clear();
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
