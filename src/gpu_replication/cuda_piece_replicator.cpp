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

// The state is read first: a piece that is complete by then stays complete, and is in the slot.
CudaExchange::Filling fill_chunk(const Replicator::Piece& piece, CudaCaptured* captured,
                                 const CudaExchange::Chunk& chunk, CUstream stream) {
  using Answer = CudaCaptured::Answer;
  const Replicator::PieceState state = *piece.state;
  if (state == Replicator::PieceState::discarded) return CudaExchange::Filling::never;
  const Answer answer = captured == nullptr
                            ? Answer::absent
                            : captured->copy(piece.capture, chunk.first_byte, chunk.size_bytes, chunk.to, chunk.filled);
  if (answer == Answer::copying) return CudaExchange::Filling::begun;
  if (answer == Answer::busy || state != Replicator::PieceState::complete) return CudaExchange::Filling::later;
  copy_to_device(chunk.to, piece.data + chunk.first_byte, chunk.size_bytes, stream);
  chunk.filled.record(stream);
  return CudaExchange::Filling::begun;
}

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
                                         Range receive_buffers, std::shared_ptr<CudaCaptured> captured, Failed failed)
    : captured_(std::move(captured)) {
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
  const auto fill = [from = exchange.from, captured = captured_](const CudaExchange::Chunk& chunk, CUstream stream) {
    return fill_chunk(from, captured.get(), chunk, stream);
  };
  return replicator_->begin({exchange.number, std::move(exchange.plan), fill, std::move(exchange.to),
                             std::move(exchange.progress), std::move(exchange.done)});
}

}  // namespace ckpt::device
