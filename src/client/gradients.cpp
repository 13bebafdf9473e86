// The engine's part in repeating updates on other nodes (docs/mechanisms.md): it keeps the gradients of an update, and
// the next snapshot captures them as a gradient record.

#include "client/engine.hpp"

namespace ckpt::client {

void Engine::warn_not_repeated(const std::string& why) {
  if (std::exchange(has_warned_not_repeated_, true)) return;
  warnings_.add(CKPT_WARNING_RECOMPUTE, "updates are not repeated on other nodes (option protection): " + why);
}

bool Engine::wants_gradients() {
  if (!options_.recomputes() || incarnation_.load(std::memory_order_relaxed) == 0 || registry_.empty()) return false;
  return gradients_.has_base() && !open_capture();
}

Outcome Engine::add_gradient(const ckpt_gradient_t& gradient) {
  if (open_capture())
    throw Failure(CKPT_ERR_INVALID,
                  "ckpt_add_gradient() was called between ckpt_snapshot() and ckpt_before_update(); call it after "
                  "ckpt_before_update(), before the update");
  if (!wants_gradients()) return {};
  if (gradient.memory == CKPT_DEVICE && !registry_.has_gpu_tensors())
    throw Failure(CKPT_ERR_INVALID, "a gradient is in GPU memory, but no registered tensor is; give its host address");
  failure_ = gradients_.add(gradient, registry_.state());
  if (failure_.empty()) return {};
  warn_not_repeated(failure_);
  return {CKPT_SKIPPED, failure_.c_str()};
}

// The tensors hold the checkpoint whose capture before_update() has finished, if that has succeeded. A GPU may still
// copy it. If that fails, no node has this checkpoint, so none repeats an update of it.
void Engine::begin_update() {
  if (!options_.recomputes()) return;
  const bool is_whole = sealing_.under_way() || newest_sealed_.load() == last_iteration_;
  gradients_.updating(is_whole
                          ? std::optional(CheckpointId(incarnation_.load(std::memory_order_relaxed), last_iteration_))
                          : std::nullopt);
}

const device::Plan* Engine::record_of(std::int64_t iteration, const RankState& state) {
  if (!options_.recomputes()) return nullptr;
  const device::Plan* const record =
      gradients_.record(CheckpointId(incarnation_.load(std::memory_order_relaxed), iteration), state);
  if (gradients_.is_too_long())
    warn_not_repeated(
        "gradients, and the tensors that the update does not compute, take more than half of the state; nodes fetch "
        "such checkpoints in full");
  return record;
}

}  // namespace ckpt::client
