#include "client/engine.hpp"

#include "base/error.hpp"

namespace ckpt::client {
namespace {

constexpr std::int64_t seal_timeout_ms = 60'000;
constexpr std::int64_t late_slot_timeout_ms = 10'000;  // an agent that is gone grants no slot

}  // namespace

Engine::Engine(const Options& options, std::unique_ptr<device::Device> device, const Limits& limits)
    : options_(options),
      limits_(limits),
      layered_({options.copy_threads, options.layered_capture, options.profile_iterations}),
      device_(std::move(device)),
      registry_(options.shard, options.private_shard()),
      capture_(*device_, options.world_size, options.on_suspicion == OnSuspicion::halt, options.recomputes()),
      gradients_(*device_),
      link_(options, [this](const arena::Control& control) { return on_words(control); }),
      health_({options.unprotected_after_ms, options.heartbeat_ms, options.node},
              {[this] { return link_.control(); }, [this] { return link_.connected(); },
               [this] { return std::string(link_.why_disconnected().what()); }}),
      halt_watch_(gate_, {.has_thread = options.on_suspicion == OnSuspicion::halt},
                  {[this] { return link_.control(); },
                   [this] { return capture_late(Deadline::in_ms(late_slot_timeout_ms), false); }}) {
  device_->pace(&layered_);
  for (const std::string& warning : options_.warnings) warnings_.add(CKPT_WARNING_ENVIRONMENT, warning);
  if (const auto problem = interposed_.attach(as_interposed())) warnings_.add(CKPT_WARNING_INTERPOSE, *problem);
}

// No commit is near.
bool Engine::is_hopeless() const { return !link_.connected() || health().state == CKPT_NOT_PROTECTED; }

// Waits while the engine can still learn of it, so that the next incarnation finds the last checkpoint on other nodes,
// too.
void Engine::await_last_commit() {
  const Deadline deadline = Deadline::in_ms(options_.close_timeout_ms);
  pause("close");
  if (has_late_captures()) {
    if (!capture_at_close()) return;
  } else if (open_capture() && await_deferred(deadline)) {
    release({}, deadline.remaining_ms());
  }
  if (!sealing_.wait(deadline)) return;
  const std::int64_t last = tickets_.newest_captured();
  if (last >= 0 && !is_hopeless()) tickets_.wait(last, CKPT_STAGE_COMMITTED, deadline);
}

Engine::~Engine() {
  interposed_.detach();
  halt_watch_.stop();
  reserving_.end();
  const Deadline deadline = Deadline::in_ms(options_.close_timeout_ms);
  use_gpu_comm(nullptr);
  if (has_late_captures()) {
    capture_at_close();
    halt_watch_.answer_at_end();
  } else if (open_capture() && !give_up_deferred(CKPT_SKIPPED)) {
    release({}, deadline.remaining_ms());
  }
  sealing_.wait(deadline);
  capture_.cancel();  // also if all is sealed: when it returns, no thread of the device is here any more
  if (gpu_replication_) gpu_replication_->end("the engine was closed");
  capture_.detach();
  link_.leave(deadline);
}

// Runs on the watcher's thread.
AgentLink::Look Engine::on_words(const arena::Control& control) {
  if (control.grant().sequence != control.used_grant()) deferred_.try_begin([this] { return begin_deferred(); });
  const CheckpointId committed = control.committed();
  if (committed && committed.incarnation() == incarnation_.load(std::memory_order_acquire))
    tickets_.committed(committed, Clock::now());
  const CheckpointId stored = control.stored();
  if (stored && (stored.incarnation() == incarnation_.load(std::memory_order_acquire) ||
                 stored.word() == restored_word_.load(std::memory_order_acquire)))
    tickets_.durable(stored.iteration());
  if (control.fenced() != 0 || link_.disowned()) tickets_.superseded();
  GpuReplication* const replication = watched_replication_.load(std::memory_order_acquire);
  if (replication == nullptr) return AgentLink::Look::later;
  if (control.fenced() != 0) replication->give_up("a newer incarnation of the job began");
  replication->look(committed);
  return replication->is_held() ? AgentLink::Look::soon : AgentLink::Look::later;
}

void Engine::check_no_capture(const char* call) const {
  if (!sealing_.wait(Deadline::in_ms(seal_timeout_ms)))
    throw Failure(CKPT_ERR_TIMEOUT, std::string(call) +
                                        " waited for the last snapshot, whose copy from the GPU did not end within a "
                                        "minute; check whether the GPU hangs (nvidia-smi)");
  if (open_capture())
    throw Failure(CKPT_ERR_INVALID, std::string(call) + " was called after snapshot(" +
                                        std::to_string(last_iteration_) +
                                        ") and before before_update(); call before_update() first");
}

void Engine::register_tensor(const ckpt_tensor& tensor) {
  change_registered("register_tensor()", [&] { registry_.add(tensor, *device_); });
  const std::uint64_t before = staging_bytes_.exchange(device_->staging_bytes(), std::memory_order_relaxed);
  if (before == staging_bytes_.load(std::memory_order_relaxed)) return;
  if (const std::string shortage = device_->shortage(); !shortage.empty())
    warnings_.add(CKPT_WARNING_GPU_MEMORY, shortage);
}

void Engine::move_tensor(const std::string& name, void* data) {
  change_registered("move_tensor()", [&] { registry_.move(name, data, *device_); });
}

void Engine::unregister_tensor(const std::string& name) {
  change_registered("unregister_tensor()", [&] { registry_.remove(name); });
}

namespace {

void check_channel(std::uint32_t channel) {
  if (channel >= arena::comm_channels_max)
    throw Failure(CKPT_ERR_INVALID, "there is no channel " + std::to_string(channel) + "; use 0 to " +
                                        std::to_string(arena::comm_channels_max - 1));
}

Outcome end_outcome(bool has_ended) {
  if (has_ended) return {};
  return {CKPT_ERR_INVALID,
          "comm_end() was called without a comm_begin() on the same channel, so nothing was recorded; call both in "
          "pairs, with the same channel"};
}

}  // namespace

void Engine::comm_begin(std::uint32_t channel) const {
  check_channel(channel);
  interposed_.own_marks();
  link_.comm().begin(channel);
}

Outcome Engine::comm_end(std::uint32_t channel) const {
  check_channel(channel);
  return end_outcome(link_.comm().end(channel));
}

void Engine::comm_begin(std::uint32_t channel, device::Stream on) const {
  check_channel(channel);
  interposed_.own_marks();
  mark_begin(channel, on);
}

void Engine::mark_begin(std::uint32_t channel, device::Stream on) const {
  const auto gpu = gpu_comm();
  if (!gpu) return link_.comm().begin(channel);
  gpu->begin(channel, on);
}

Outcome Engine::comm_end(std::uint32_t channel, device::Stream on) const {
  check_channel(channel);
  return mark_end(channel, on);
}

Outcome Engine::mark_end(std::uint32_t channel, device::Stream on) const {
  const auto gpu = gpu_comm();
  return end_outcome(!gpu ? link_.comm().end(channel) : gpu->end(channel, on));
}

// With tensors on a GPU, a wait of the host says nothing about what the GPU does.
void Engine::bubble_begin(std::optional<device::Stream> on) {
  if (!registry_.has_gpu_tensors()) {
    if (layered_.bubble_begin()) link_.comm().bubble_begin();
  } else if (const auto gpu = gpu_comm(); gpu && on) {
    gpu->bubble_begin(*on);
  }
}

Outcome Engine::bubble_end(std::optional<device::Stream> on) {
  std::optional<bool> has_ended = true;
  if (!registry_.has_gpu_tensors()) {
    has_ended = layered_.bubble_end();
    if (has_ended == true) link_.comm().bubble_end();
  } else if (const auto gpu = gpu_comm(); gpu && on && !gpu->bubble_end(*on)) {
    has_ended.reset();
  }
  if (has_ended) return {};
  return {CKPT_ERR_INVALID,
          "bubble_end() was called without a bubble_begin() before it, so nothing was recorded; call both in pairs, on "
          "the training thread or with the stream that training computes on"};
}

// No exception may pass through libckptinterpose, which is C.
ckpt_interposed_engine Engine::as_interposed() {
  const auto begin = [](void* self, std::uint32_t channel, void* stream) {
    auto& engine = *static_cast<Engine*>(self);
    if (engine.interposed_.has_own_marks()) return 0;
    try {
      engine.mark_begin(channel, stream);
      return 1;
    } catch (const std::exception&) {
      return 0;
    }
  };
  const auto end = [](void* self, std::uint32_t channel, void* stream) {
    try {
      static_cast<Engine*>(self)->mark_end(channel, stream);
    } catch (const std::exception&) {
      // The agent sees a communication that does not end.
    }
  };
  const auto wait_halt = [](void* self, std::int64_t timeout_ms, std::uint64_t* incarnation) {
    ckpt_halt_t halt = CKPT_HALT_INIT;
    try {
      if (static_cast<Engine*>(self)->wait_halt(timeout_ms, halt).status != CKPT_OK) return 0;
    } catch (const std::exception&) {
      return 0;
    }
    *incarnation = halt.incarnation;
    return 1;
  };
  ckpt_interposed_engine engine = {sizeof engine, this, begin, end, nullptr};
  if (options_.on_suspicion == OnSuspicion::halt) engine.wait_halt = wait_halt;
  return engine;
}

Outcome Engine::resume() const {
  if (link_.comm().resume()) return {};
  return {CKPT_ERR_INVALID,
          "resume() was called without pause() before it, so nothing was recorded; call both in pairs"};
}

ckpt_stats_t Engine::stats() const {
  ckpt_stats_t stats = tickets_.stats();
  stats.gpu_staging_bytes = staging_bytes_.load(std::memory_order_relaxed);
  const arena::CopiedBytes copied = layered_.copied_bytes();
  stats.bubble_bytes = copied.in_bubbles;
  stats.compute_bytes = copied.beside_computation;
  stats.update_bytes = copied.in_update;
  stats.layered = copied.layered;
  stats.layered_late = copied.layered_late;
  return stats;
}

Outcome Engine::wait(std::int64_t iteration, ckpt_stage stage, std::int64_t timeout_ms) const {
  if (iteration < 0)
    return {CKPT_ERR_INVALID, "wait() was called with a negative iteration; give one that was passed to snapshot()"};
  if (stage < CKPT_STAGE_NONE || stage > CKPT_STAGE_DURABLE)
    return {CKPT_ERR_INVALID, "wait() was called with an unknown stage; use one of ckpt_stage"};
  switch (const ckpt_status status = tickets_.wait(iteration, stage, Deadline::in_ms(timeout_ms))) {
    case CKPT_OK:
      return {};
    case CKPT_ERR_TIMEOUT:
      if (stage == CKPT_STAGE_DURABLE)
        return {status,
                "the snapshot is not on storage yet; wait longer, or see ckptctl status. The options storage, "
                "storage_every and storage_interval_s say which snapshots go to storage"};
      return {status, "the snapshot did not reach the stage in time; wait longer, or see ckptctl status"};
    case CKPT_SKIPPED:
      return {status, "the snapshot of this iteration was skipped on all ranks; wait for a later one"};
    case CKPT_DISCARDED:
      return {status, "the snapshot of this iteration was discarded; wait for a later one"};
    case CKPT_ERR_SUPERSEDED:
      return {status,
              "a new incarnation of the job began, so this snapshot will not be committed. If this process has not "
              "rejoined the job, stop it and restart the rank with all others"};
    default:
      return {status, "the snapshot of this iteration was not taken; the error of ckpt_snapshot() says why"};
  }
}

}  // namespace ckpt::client
