#include "gpu_replication/nccl_comm.hpp"

#include <utility>

#include "base/error.hpp"

namespace ckpt::device {
namespace {

#define CKPT_NCCL(name, ...) check_nccl("nccl" #name, nccl_library().name(__VA_ARGS__))

nccl::Config unobtrusive() {
  nccl::Config config;
  config.blocking = 0;
  config.min_ctas = 1;
  config.max_ctas = 1;
  return config;
}

void add(const NcclComm::Transfer& transfer, nccl::Communicator* comm, CUstream stream) {
  const auto& [kind, peer, data, size_bytes] = transfer;
  if (kind == NcclComm::Transfer::Kind::send)
    CKPT_NCCL(Send, reinterpret_cast<const void*>(data), size_bytes, nccl::uint8, peer, comm, stream);
  else
    CKPT_NCCL(Recv, reinterpret_cast<void*>(data), size_bytes, nccl::uint8, peer, comm, stream);
}

}  // namespace

nccl::UniqueId NcclComm::new_id() {
  nccl::UniqueId id;
  CKPT_NCCL(GetUniqueId, &id);
  return id;
}

NcclComm::NcclComm(const nccl::UniqueId& id, int ranks, int rank) : ranks_(ranks), rank_(rank) {
  nccl::Config config = unobtrusive();
  CKPT_NCCL(CommInitRankConfig, &comm_, ranks, id, rank, &config);
}

NcclComm::Lock NcclComm::use() const {
  Lock lock(mutex_);
  if (is_ending_)
    throw Failure(CKPT_ERR_SYSTEM, "GPU replication was given up, and its NCCL communicator is being ended");
  return lock;
}

bool NcclComm::ready() const {
  const Lock lock = use();
  nccl::Result state = nccl::success;
  CKPT_NCCL(CommGetAsyncError, comm_, &state);
  check_nccl("NCCL", state);
  return state == nccl::success;
}

// NCCL forgets the memory when the communicator ends.
void NcclComm::use_memory(CUdeviceptr data, std::size_t size_bytes) {
  const Lock lock = use();
  void* handle = nullptr;
  if (nccl_library().CommRegister != nullptr)
    nccl_library().CommRegister(comm_, reinterpret_cast<void*>(data), size_bytes, &handle);
}

void NcclComm::exchange(std::span<const Transfer> transfers, CUstream stream) {
  const Lock lock = use();
  CKPT_NCCL(GroupStart);
  try {
    for (const Transfer& transfer : transfers) add(transfer, comm_, stream);
  } catch (const Failure&) {
    nccl_library().GroupEnd();  // the group belongs to the thread, not to this communicator
    throw;
  }
  CKPT_NCCL(GroupEnd);
}

void NcclComm::abort() {
  Lock lock(mutex_);
  if (std::exchange(is_ending_, true)) return ended_.wait(lock, [this] { return has_ended_; });
  lock.unlock();
  nccl_library().CommAbort(comm_);  // its result makes no difference
  lock.lock();
  has_ended_ = true;
  ended_.notify_all();
}

}  // namespace ckpt::device
