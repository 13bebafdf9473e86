// The engine's part for halts with tensors on a GPU: the host waits for the GPU.
//
// Without halts the host runs ahead of the GPU, and enqueues the update behind a communication that may hang. If that
// communication is aborted, the GPU goes on to the update with wrong gradients. So with halts the host waits twice:
// - before_update() returns when the GPU has done all work that was enqueued before it. While a communication hangs, no
//   update is enqueued.
// - snapshot() returns when the GPU has done the update. So the tensors of a rank at rest do not change on the GPU
//   either, and a late capture need not wait for training's streams.

#include <thread>

#include "client/engine.hpp"

namespace ckpt::client {
namespace {

constexpr std::chrono::microseconds gpu_poll{50};

}  // namespace

bool Engine::waits_for_gpu() const {
  return options_.on_suspicion == OnSuspicion::halt && registry_.has_gpu_tensors() && device_->captures_late();
}

// Returns early once this rank is halted. A rank that is held may have to do one more update, so it waits on.
void Engine::await_gpu(const char* call, std::span<const device::Stream> streams) {
  if (!waits_for_gpu()) return;
  const Deadline deadline = Deadline::in_ms(limits_.gpu_work_ms);
  for (const device::Stream stream : streams) {
    device_->note_lead(stream);
    while (device_->is_ahead() && gate_.state() != UpdateGate::over) {
      if (deadline.passed())
        throw Failure(CKPT_ERR_TIMEOUT,
                      std::string(call) + " waited " + std::to_string(limits_.gpu_work_ms) +
                          " ms for the GPU to do what was enqueued before; check whether a "
                          "communication hangs. The engine has changed nothing, and the call may be repeated");
      std::this_thread::sleep_for(gpu_poll);
    }
  }
}

std::shared_ptr<GpuComm> Engine::gpu_comm() const {
  const std::lock_guard lock(gpu_comm_mutex_);
  return gpu_comm_;
}

// Other threads may be within the previous one. Whoever is last ends it.
void Engine::use_gpu_comm(std::shared_ptr<GpuComm> comm) {
  const std::lock_guard lock(gpu_comm_mutex_);
  gpu_comm_.swap(comm);
}

}  // namespace ckpt::client
