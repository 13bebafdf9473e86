#include "gpu_replication/cuda_replicator.hpp"

#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "device/cuda_progress_thread.hpp"
#include "gpu_replication/nccl_environment.hpp"

namespace ckpt::device {

CudaReplicator::CudaReplicator(int ordinal, const Group& group, const Settings& settings,
                               const char* const* environment, Failed failed)
    : progress_thread_(std::make_shared<ProgressThread>(group, settings, std::move(failed))) {
  refuse_nccl_overrides(environment);
  const auto context = std::make_shared<const Context>(ordinal);
  try {
    watchdog_ = std::make_unique<LeavableThread>(
        "ckpt-repl-dog", [progress_thread = progress_thread_]() { progress_thread->watch_thread(); });
    thread_ = std::make_unique<LeavableThread>(
        "ckpt-repl", [progress_thread = progress_thread_, context]() { progress_thread->run(context); });
  } catch (const std::system_error& error) {
    progress_thread_->leave();
    throw Failure(CKPT_ERR_SYSTEM, std::string("cannot start the thread for GPU replication: ") + error.what() +
                                       "; raise the limit of threads (ulimit -u)");
  }
}

CudaReplicator::~CudaReplicator() {
  const Deadline deadline = progress_thread_->stop();
  thread_->join(deadline);
  watchdog_->join(deadline);
  progress_thread_->report_failure();  // if it was not reported yet: later its listener may be gone
}

bool CudaReplicator::wait_to_meet(Deadline deadline) { return progress_thread_->wait_to_meet(deadline); }
bool CudaReplicator::begin(Exchange exchange) { return progress_thread_->begin(std::move(exchange)); }
void CudaReplicator::allow(std::uint64_t number, std::uint64_t steps) { progress_thread_->allow(number, steps); }
void CudaReplicator::finish(std::uint64_t number) { progress_thread_->finish(number); }
void CudaReplicator::give_up(const std::string& why) { progress_thread_->give_up(why); }
bool CudaReplicator::works() const { return progress_thread_->works(); }

}  // namespace ckpt::device
