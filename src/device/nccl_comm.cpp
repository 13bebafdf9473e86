#include "device/nccl_comm.hpp"

#include <condition_variable>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/thread.hpp"

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

// Shared with the thread that ends the communicator, which may outlive everything here.
class NcclComm::Ending {
 public:
  void over() {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }
  bool wait(Deadline deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline.at(), [this] { return is_over_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
};

nccl::UniqueId NcclComm::new_id() {
  nccl::UniqueId id;
  CKPT_NCCL(GetUniqueId, &id);
  return id;
}

NcclComm::NcclComm(const nccl::UniqueId& id, int ranks, int rank)
    : ranks_(ranks), rank_(rank), ending_(std::make_shared<Ending>()) {
  nccl::Config config = unobtrusive();
  CKPT_NCCL(CommInitRankConfig, &comm_, ranks, id, rank, &config);
}

NcclComm::~NcclComm() { abort(Deadline::in_ms(0)); }

bool NcclComm::ready() const {
  nccl::Result state = nccl::success;
  CKPT_NCCL(CommGetAsyncError, comm_, &state);
  check_nccl("NCCL", state);
  return state == nccl::success;
}

void NcclComm::exchange(std::span<const Transfer> transfers, CUstream stream) {
  CKPT_NCCL(GroupStart);
  try {
    for (const Transfer& transfer : transfers) add(transfer, comm_, stream);
  } catch (const Failure&) {
    nccl_library().GroupEnd();  // the thread's, and not only this communicator's
    throw;
  }
  CKPT_NCCL(GroupEnd);
}

bool NcclComm::abort(Deadline deadline) {
  if (comm_ == nullptr) return ending_->wait(deadline);
  try {
    start_thread("ckpt-nccl-end", [comm = std::exchange(comm_, nullptr), ending = ending_] {
      nccl_library().CommAbort(comm);  // sets its GPU by itself; what it returns changes nothing
      ending->over();
    }).detach();
  } catch (const std::system_error&) {
    return false;  // no thread for it: it stays
  }
  return ending_->wait(deadline);
}

}  // namespace ckpt::device
