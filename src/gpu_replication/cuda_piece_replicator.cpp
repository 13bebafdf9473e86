#include "gpu_replication/cuda_piece_replicator.hpp"

#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "device/cuda_copy.hpp"
#include "gpu_replication/nccl_environment.hpp"
#include "gpu_replication/nccl_library.hpp"

namespace ckpt::device {
namespace {

nccl::UniqueId nccl_id(const Replicator::Id& id) {
  nccl::UniqueId made;
  static_assert(sizeof(made.internal) == sizeof(Replicator::Id));
  std::memcpy(made.internal, id.data(), id.size());
  return made;
}

// Memory that the GPU may still write to.
void keep_pinned(std::vector<Registration> pinned) {
  static auto* const all = new std::vector<std::vector<Registration>>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  all->push_back(std::move(pinned));
}

// The registrations of the receive buffers. The replicator's thread owns them, because unregistering may wait for NCCL
// without end, and the caller must not.
class PinnedReceiveBuffers {
 public:
  // The constructor and pin() throw Failure.
  PinnedReceiveBuffers(int ordinal, Replicator::Failed failed) : context_(ordinal), failed_(std::move(failed)) {}
  ~PinnedReceiveBuffers() {
    const ContextScope scope(context_);
    if (is_stuck_) keep_pinned(std::move(pinned_));
    pinned_.clear();
  }
  PinnedReceiveBuffers(const PinnedReceiveBuffers&) = delete;
  PinnedReceiveBuffers& operator=(const PinnedReceiveBuffers&) = delete;

  void pin(Range receive_buffers) {
    const ContextScope scope(context_);
    device::pin(pinned_, receive_buffers);
  }
  void failed(const std::string& why, bool is_stuck) {
    is_stuck_ = is_stuck;
    failed_(why, is_stuck);
  }

 private:
  const Context context_;
  const Replicator::Failed failed_;  // owns what is pinned
  std::vector<Registration> pinned_;
  std::atomic<bool> is_stuck_{false};
};

}  // namespace

void CudaPieceReplicator::check(const char* const* environment) {
  refuse_nccl_overrides(environment);
  nccl_library();
}

Replicator::Id CudaPieceReplicator::new_id() {
  const nccl::UniqueId made = NcclComm::new_id();
  Id id;
  std::memcpy(id.data(), made.internal, id.size());
  return id;
}

CudaPieceReplicator::CudaPieceReplicator(int ordinal, const Group& group, const Settings& settings,
                                         Range receive_buffers, Failed failed) {
  check(settings.environment);
  const auto pinned = std::make_shared<PinnedReceiveBuffers>(ordinal, std::move(failed));
  pinned->pin(receive_buffers);
  const CudaReplicator::Settings replication_settings{
      {settings.reserved_bytes, settings.step_timeout_ms, group.makes_parity},
      settings.meet_timeout_ms,
      settings.end_timeout_ms};
  replicator_ = std::make_unique<CudaReplicator>(
      ordinal, CudaReplicator::Group{nccl_id(group.id), group.members, group.member}, replication_settings,
      settings.environment, [pinned](const std::string& why, bool is_stuck) { pinned->failed(why, is_stuck); });
}

bool CudaPieceReplicator::begin(Exchange exchange) {
  const auto fill = [from = exchange.from](std::uint64_t first_byte, std::uint64_t size_bytes, CUdeviceptr to,
                                           CUstream stream) {
    copy_to_device(to, from + first_byte, size_bytes, stream);
  };
  return replicator_->begin({exchange.number, std::move(exchange.plan), fill, std::move(exchange.to),
                             std::move(exchange.progress), std::move(exchange.done)});
}

}  // namespace ckpt::device
