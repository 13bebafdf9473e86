// The C ABI over Engine: turns failures into status codes and keeps every exception inside.

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <span>

#include "base/error.hpp"
#include "device/open_device.hpp"
#include "engine/engine.hpp"
#include "engine/fork_guard.hpp"

struct ckpt_engine {
  explicit ckpt_engine(const ckpt::Options& options) : engine(options, ckpt::device::open_device(options)) {}
  ckpt::engine::ForkGuard fork_guard;
  ckpt::engine::Engine engine;
};

namespace {

using ckpt::Failure;
using ckpt::engine::Outcome;

// The ABI's one piece of state. An engine in static storage is closed when its thread's own objects are gone already.
thread_local bool last_error_gone = false;  // NOLINT
struct LastError {
  std::string sentence;
  ~LastError() { last_error_gone = true; }
};
thread_local LastError last_error;  // NOLINT

ckpt_status fail(ckpt_status status, const char* sentence) noexcept {
  if (last_error_gone) return status;
  try {
    last_error.sentence = sentence;
  } catch (...) {
    last_error.sentence.clear();
  }
  return status;
}

// Runs `body`, which returns an Outcome, at the edge.
template <class Body>
ckpt_status guarded(Body body) noexcept {
  try {
    fail(CKPT_OK, "");
    const Outcome outcome = body();
    return *outcome.text == '\0' ? outcome.status : fail(outcome.status, outcome.text);
  } catch (const Failure& failure) {
    return fail(failure.status(), failure.what());
  } catch (const std::bad_alloc&) {
    return fail(CKPT_ERR_SYSTEM, "out of memory in ckptengine");
  } catch (const std::exception& error) {
    return fail(CKPT_ERR_INTERNAL, error.what());
  } catch (...) {
    return fail(CKPT_ERR_INTERNAL, "an unknown failure in ckptengine");
  }
}

void need(bool given, const char* what) {
  if (!given) throw Failure(CKPT_ERR_INVALID, std::string(what) + " is null; give it");
}

// The same, for calls on an engine.
template <class Body>
ckpt_status on_engine(ckpt_engine* engine, Body body) noexcept {
  return guarded([&] {
    need(engine != nullptr, "the engine");
    if (engine->fork_guard.in_forked_child())
      throw Failure(CKPT_ERR_INVALID, "this process was forked from the engine's; create an engine of its own");
    return body(engine->engine);
  });
}

ckpt::OptionPairs pairs_of(const ckpt_option* options, std::size_t count) {
  need(options != nullptr || count == 0, "the list of options");
  ckpt::OptionPairs pairs;
  for (std::size_t i = 0; i < count; ++i) {
    need(options[i].key != nullptr && options[i].value != nullptr, "an option's key or value");
    pairs.emplace_back(options[i].key, options[i].value);
  }
  return pairs;
}

}  // namespace

const char* ckpt_last_error(void) { return last_error_gone ? "" : last_error.sentence.c_str(); }

const char* ckpt_version(void) { return CKPT_VERSION; }

ckpt_status ckpt_create(const ckpt_option* options, size_t count, ckpt_engine** engine) {
  return guarded([&]() -> Outcome {
    need(engine != nullptr, "the place for the engine");
    *engine = nullptr;
    *engine = new ckpt_engine(ckpt::parse_options(ckpt::Reader::engine, pairs_of(options, count), environ));
    return {};
  });
}

void ckpt_close(ckpt_engine* engine) {
  // A forked child's copy is left alone: its threads never existed, and its mappings are not there.
  if (engine == nullptr || engine->fork_guard.in_forked_child()) return;
  guarded([&]() -> Outcome {
    delete engine;
    return {};
  });
}

ckpt_status ckpt_register_tensor(ckpt_engine* engine, const ckpt_tensor* tensor) {
  return on_engine(engine, [&](auto& self) {
    need(tensor != nullptr, "the tensor");
    return self.register_tensor(*tensor);
  });
}

ckpt_status ckpt_move_tensor(ckpt_engine* engine, const char* name, void* data) {
  return on_engine(engine, [&](auto& self) -> Outcome {
    need(name != nullptr, "the tensor's name");
    self.move_tensor(name, data);
    return {};
  });
}

ckpt_status ckpt_unregister_tensor(ckpt_engine* engine, const char* name) {
  return on_engine(engine, [&](auto& self) -> Outcome {
    need(name != nullptr, "the tensor's name");
    self.unregister_tensor(name);
    return {};
  });
}

ckpt_status ckpt_stored_layout(ckpt_engine* engine, const char** json) {
  return on_engine(engine, [&](auto& self) -> Outcome {
    need(json != nullptr, "the place for the layout");
    *json = self.stored_layout().c_str();
    return {};
  });
}

ckpt_status ckpt_restore(ckpt_engine* engine, ckpt_restored* result) {
  return ckpt_restore_on(engine, nullptr, result);
}

ckpt_status ckpt_restore_on(ckpt_engine* engine, void* stream, ckpt_restored* result) {
  std::string message;
  const ckpt_status status = on_engine(engine, [&](auto& self) -> Outcome {
    need(result != nullptr, "the place for the result");
    *result = self.restore(message, stream);
    return {};
  });
  return status == CKPT_OK && !message.empty() ? fail(CKPT_OK, message.c_str()) : status;
}

ckpt_status ckpt_snapshot(ckpt_engine* engine, int64_t iteration) {
  return ckpt_snapshot_on(engine, iteration, nullptr);
}

ckpt_status ckpt_snapshot_on(ckpt_engine* engine, int64_t iteration, void* stream) {
  return on_engine(engine, [&](auto& self) { return self.snapshot(iteration, stream); });
}

ckpt_status ckpt_before_update(ckpt_engine* engine) {
  void* const legacy_default = nullptr;
  return ckpt_before_update_on(engine, &legacy_default, 1);
}

ckpt_status ckpt_before_update_on(ckpt_engine* engine, void* const* streams, size_t count) {
  return on_engine(engine, [&](auto& self) {
    need(streams != nullptr || count == 0, "the list of streams");
    return self.before_update(std::span(streams, count));
  });
}

ckpt_status ckpt_discard(ckpt_engine* engine) {
  return on_engine(engine, [](auto& self) -> Outcome {
    self.discard();
    return {};
  });
}

ckpt_status ckpt_comm_begin(ckpt_engine* engine, uint32_t stream) {
  return on_engine(engine, [&](const auto& self) -> Outcome {
    self.comm_begin(stream);
    return {};
  });
}

ckpt_status ckpt_comm_end(ckpt_engine* engine, uint32_t stream) {
  return on_engine(engine, [&](const auto& self) { return self.comm_end(stream); });
}

ckpt_status ckpt_comm_begin_on(ckpt_engine* engine, uint32_t stream, void* on) {
  return on_engine(engine, [&](const auto& self) -> Outcome {
    self.comm_begin(stream, on);
    return {};
  });
}

ckpt_status ckpt_comm_end_on(ckpt_engine* engine, uint32_t stream, void* on) {
  return on_engine(engine, [&](const auto& self) { return self.comm_end(stream, on); });
}

ckpt_status ckpt_ticket_state(ckpt_engine* engine, int64_t iteration, ckpt_stage* stage) {
  return on_engine(engine, [&](const auto& self) -> Outcome {
    need(stage != nullptr, "the place for the stage");
    *stage = self.stage(iteration);
    return {};
  });
}

ckpt_status ckpt_wait(ckpt_engine* engine, int64_t iteration, ckpt_stage stage, int64_t timeout_ms) {
  return on_engine(engine, [&](const auto& self) { return self.wait(iteration, stage, timeout_ms); });
}

ckpt_status ckpt_health(ckpt_engine* engine, ckpt_health_t* health) {
  return on_engine(engine, [&](const auto& self) -> Outcome {
    need(health != nullptr, "the place for the verdict");
    // What grows at the end stays unknown to callers of before.
    const std::size_t known_bytes = health->struct_size;
    constexpr std::size_t first_bytes = sizeof(ckpt_health_t);
    if (known_bytes < first_bytes)
      throw Failure(CKPT_ERR_INVALID, "struct_size is " + std::to_string(known_bytes) +
                                          "; set it to sizeof(ckpt_health_t) before ckpt_health()");
    ckpt_health_t now = self.health();
    now.struct_size = std::min(known_bytes, sizeof now);
    std::memcpy(health, &now, now.struct_size);
    return {};
  });
}

ckpt_status ckpt_on_health(ckpt_engine* engine, ckpt_health_callback callback, void* user) {
  return on_engine(engine, [&](auto& self) -> Outcome {
    self.on_health(callback, user);
    return {};
  });
}

ckpt_status ckpt_stats(ckpt_engine* engine, ckpt_stats_t* stats) {
  return on_engine(engine, [&](const auto& self) -> Outcome {
    need(stats != nullptr, "the place for the counters");
    *stats = self.stats();
    return {};
  });
}
