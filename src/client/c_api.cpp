// The C API over Engine. It turns failures into status codes, lets no exception out, and copies structs of any version.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <span>

#include "base/error.hpp"
#include "client/engine.hpp"
#include "device/open_device.hpp"
#include "kernels/digest.hpp"

namespace ckpt::client {

// Detects that a process is a forked child. A child inherits an engine's memory, but not its threads and mappings.
class ForkGuard {
 public:
  ForkGuard() {
    void* page = ::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // The kernel gives a child this page full of zeros, so the check costs a load and no system call.
    if (page == MAP_FAILED || ::madvise(page, page_bytes, MADV_WIPEONFORK) != 0)
      ckpt::throw_errno(CKPT_ERR_SYSTEM, "cannot map the memory page that detects forks");
    page_ = static_cast<volatile char*>(page);
    *page_ = 1;
  }
  ~ForkGuard() { ::munmap(const_cast<char*>(page_), page_bytes); }
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  bool in_forked_child() const { return *page_ == 0; }

 private:
  static constexpr std::size_t page_bytes = 4096;
  volatile char* page_ = nullptr;
};

}  // namespace ckpt::client

struct ckpt_engine {
  explicit ckpt_engine(const ckpt::Options& options) : engine(options, ckpt::device::open_device(options)) {}
  ckpt::client::ForkGuard fork_guard;
  ckpt::client::Engine engine;
};

namespace {

using ckpt::Failure;
using ckpt::client::Outcome;

// The library's only global state. An engine in static storage is closed after its thread's own objects are gone.
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

// Runs `body`, which returns an Outcome, at the edge of the library.
template <class Body>
ckpt_status guarded(Body body) noexcept {
  try {
    fail(CKPT_OK, "");
    const Outcome outcome = body();
    return *outcome.text == '\0' ? outcome.status : fail(outcome.status, outcome.text);
  } catch (const Failure& failure) {
    return fail(failure.status(), failure.what());
  } catch (const std::bad_alloc&) {
    return fail(CKPT_ERR_SYSTEM, "this process has no memory left for ckptengine; free some");
  } catch (const std::exception& error) {
    return fail(CKPT_ERR_INTERNAL, error.what());
  } catch (...) {
    return fail(CKPT_ERR_INTERNAL,
                "a call failed for an unknown reason: this is a bug in ckptengine; report it with the agent's log");
  }
}

void need(bool given, const char* what) {
  if (!given) throw Failure(CKPT_ERR_INVALID, std::string(what) + " is a null pointer; give a valid pointer");
}

// The same, for calls on an engine.
template <class Body>
ckpt_status on_engine(ckpt_engine* engine, Body body) noexcept {
  return guarded([&] {
    need(engine != nullptr, "the engine");
    if (engine->fork_guard.in_forked_child())
      throw Failure(CKPT_ERR_INVALID,
                    "this process was forked after this engine was created, so it cannot use the engine; create "
                    "another engine in this process");
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

// Copies `from` into the caller's struct, which may be older and smaller, or newer and larger, than this library's.
// `first_bytes` is its size in the first release.
template <class Struct>
void hand_over(const Struct& from, Struct* to, std::size_t first_bytes, const char* name) {
  const std::size_t given_bytes = to->struct_size;
  if (given_bytes < first_bytes)
    throw Failure(CKPT_ERR_INVALID, std::string(name) + "'s struct_size is " + std::to_string(given_bytes) +
                                        ", less than " + std::to_string(first_bytes) + "; set it to sizeof(" + name +
                                        ") before the call");
  const std::size_t filled_bytes = std::min(given_bytes, sizeof from);
  std::memcpy(static_cast<void*>(to), &from, filled_bytes);
  to->struct_size = filled_bytes;
}

// Sizes in the first release: a caller's struct has at least these. They stay when structs grow.
constexpr std::size_t tensor_bytes_first = 48, restored_bytes_first = 88, stats_bytes_first = 96,
                      health_bytes_first = 1032, halt_bytes_first = 544, gradient_bytes_first = 128;
static_assert(sizeof(ckpt_tensor) >= tensor_bytes_first && sizeof(ckpt_restored) >= restored_bytes_first &&
              sizeof(ckpt_stats_t) >= stats_bytes_first && sizeof(ckpt_health_t) >= health_bytes_first &&
              sizeof(ckpt_halt_t) >= halt_bytes_first && sizeof(ckpt_gradient_t) >= gradient_bytes_first);

// Copies the caller's struct to the one that this library knows. Further members of a newer struct must be zero.
// `known` comes initialized; `name` and `macro` are for people.
template <class Struct>
Struct taken(const Struct& given, Struct known, std::size_t first_bytes, const char* name, const char* macro) {
  if (given.struct_size < first_bytes)
    throw Failure(CKPT_ERR_INVALID, std::string(name) + "'s struct_size is " + std::to_string(given.struct_size) +
                                        ", less than " + std::to_string(first_bytes) + "; initialize the struct with " +
                                        macro);
  const auto* const bytes = reinterpret_cast<const char*>(&given);
  const std::size_t known_bytes = std::min(given.struct_size, sizeof known);
  if (std::any_of(bytes + known_bytes, bytes + given.struct_size, [](char byte) { return byte != 0; }))
    throw Failure(CKPT_ERR_INVALID, std::string(name) +
                                        " has members that this library, version " CKPT_VERSION
                                        ", does not know; use the library and the header of one version");
  std::memcpy(&known, &given, known_bytes);
  return known;
}

ckpt_tensor tensor_of(const ckpt_tensor& given) {
  return taken<ckpt_tensor>(given, CKPT_TENSOR_INIT, tensor_bytes_first, "ckpt_tensor", "CKPT_TENSOR_INIT");
}
ckpt_gradient_t gradient_of(const ckpt_gradient_t& given) {
  return taken<ckpt_gradient_t>(given, CKPT_GRADIENT_INIT, gradient_bytes_first, "ckpt_gradient_t",
                                "CKPT_GRADIENT_INIT");
}

std::optional<ckpt::device::Stream> named_stream(void* stream) {
  return stream == CKPT_NO_STREAM ? std::nullopt : std::optional(stream);
}

// CKPT_NO_STREAM is for state in host memory, where streams mean nothing.
ckpt::device::Stream stream_of(const ckpt::client::Engine& engine, void* stream, const char* call) {
  if (stream != CKPT_NO_STREAM) return stream;
  if (engine.has_gpu_tensors())
    throw Failure(CKPT_ERR_INVALID, std::string(call) +
                                        " was called without a stream, but tensors are in GPU memory; give the stream "
                                        "that changes them (null is CUDA's legacy default stream)");
  return nullptr;
}

// Descriptions by status. Numbers between the groups are unused.
constexpr std::array<std::pair<ckpt_status, const char*>, 15> descriptions = {{
    {CKPT_OK, "success"},
    {CKPT_SKIPPED, "the snapshot was skipped"},
    {CKPT_DISCARDED, "the snapshot was discarded"},
    {CKPT_ERR_INVALID, "a bad argument, option or order of calls"},
    {CKPT_ERR_NO_AGENT, "no agent answers on this node"},
    {CKPT_ERR_CLAIMED, "another live process holds this rank"},
    {CKPT_ERR_SUPERSEDED, "this process belongs to an earlier incarnation of the job"},
    {CKPT_ERR_NO_SPACE, "the state does not fit into memory"},
    {CKPT_ERR_MISMATCH, "world size or layout differs from what is stored"},
    {CKPT_ERR_LOST, "a committed checkpoint is lost"},
    {CKPT_ERR_TIMEOUT, "a deadline passed"},
    {CKPT_ERR_CORRUPT, "bytes did not match their digest"},
    {CKPT_ERR_SYSTEM, "the operating system or the GPU refused something"},
    {CKPT_ERR_INTERNAL, "a bug in ckptengine"},
    {CKPT_ERR_HALTED, "the job was halted"},
}};

// A caller may pass any number, which must not be converted to the enum before this check.
int number_of(const ckpt_status& status) {
  static_assert(sizeof status == sizeof(int));
  int number = 0;
  std::memcpy(&number, &status, sizeof number);
  return number;
}

}  // namespace

const char* ckpt_last_error(void) { return last_error_gone ? "" : last_error.sentence.c_str(); }

int ckpt_is_error(ckpt_status status) { return number_of(status) >= CKPT_ERR_INVALID ? 1 : 0; }

const char* ckpt_status_string(ckpt_status status) {
  for (const auto& [known, description] : descriptions)
    if (number_of(status) == known) return description;
  return "an unknown status";
}

const char* ckpt_version(void) { return CKPT_VERSION; }

uint64_t ckpt_digest(const void* data, size_t size_bytes) { return ckpt::kernels::leaf_digest(data, size_bytes); }

ckpt_status ckpt_create(const ckpt_option* options, size_t count, ckpt_engine** engine) {
  return guarded([&]() -> Outcome {
    need(engine != nullptr, "the place for the engine");
    *engine = nullptr;
    *engine = new ckpt_engine(ckpt::parse_options(ckpt::Reader::engine, pairs_of(options, count), environ));
    return {};
  });
}

void ckpt_close(ckpt_engine* engine) {
  // Leaves a forked child's copy alone: its threads never existed, and its mappings are gone.
  if (engine == nullptr || engine->fork_guard.in_forked_child()) return;
  guarded([&]() -> Outcome {
    engine->engine.await_last_commit();
    return {};
  });
  guarded([&]() -> Outcome {
    delete engine;
    return {};
  });
}

ckpt_status ckpt_register_tensor(ckpt_engine* engine, const ckpt_tensor* tensor) {
  return on_engine(engine, [&](auto& self) -> Outcome {
    need(tensor != nullptr, "the tensor");
    self.register_tensor(tensor_of(*tensor));
    return {};
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

ckpt_status ckpt_take_shards(ckpt_engine* engine) {
  return on_engine(engine, [&](auto& self) -> Outcome {
    self.take_shards();
    return {};
  });
}

ckpt_status ckpt_load_taken(ckpt_engine* engine, const char* shard, void* data, size_t size_bytes) {
  return on_engine(engine, [&](auto& self) -> Outcome {
    need(shard != nullptr, "the shard's name");
    need(data != nullptr || size_bytes == 0, "the place for the shard");
    self.load_taken(shard, data, size_bytes);
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

ckpt_status ckpt_restore(ckpt_engine* engine, void* stream, ckpt_restored* result) {
  return on_engine(engine, [&](auto& self) -> Outcome {
    need(result != nullptr, "the place for the result");
    // Checks this before anything is done: a struct of unknown size gets an error that changes nothing.
    hand_over<ckpt_restored>(CKPT_RESTORED_INIT, result, restored_bytes_first, "ckpt_restored");
    hand_over(self.restore(stream_of(self, stream, "restore()")), result, restored_bytes_first, "ckpt_restored");
    return {};
  });
}

ckpt_status ckpt_snapshot(ckpt_engine* engine, int64_t iteration, void* stream) {
  return on_engine(engine, [&](auto& self) { return self.snapshot(iteration, stream_of(self, stream, "snapshot()")); });
}

ckpt_status ckpt_before_update(ckpt_engine* engine, void* const* streams, size_t count) {
  return on_engine(engine, [&](auto& self) {
    need(streams != nullptr || count == 0, "the list of streams");
    const std::span<void* const> named(streams, count);
    if (count == 0 || std::find(named.begin(), named.end(), CKPT_NO_STREAM) != named.end()) {
      stream_of(self, CKPT_NO_STREAM, "before_update()");
      return self.before_update();
    }
    return self.before_update(named);
  });
}

ckpt_status ckpt_wants_gradients(ckpt_engine* engine, int32_t* wants) {
  return on_engine(engine, [&](auto& self) -> Outcome {
    need(wants != nullptr, "the place for the answer");
    *wants = self.wants_gradients() ? 1 : 0;
    return {};
  });
}

ckpt_status ckpt_add_gradient(ckpt_engine* engine, const ckpt_gradient_t* gradient) {
  return on_engine(engine, [&](auto& self) {
    need(gradient != nullptr, "the gradient");
    return self.add_gradient(gradient_of(*gradient));
  });
}

ckpt_status ckpt_discard(ckpt_engine* engine) {
  return on_engine(engine, [](auto& self) -> Outcome {
    self.discard();
    return {};
  });
}

ckpt_status ckpt_own_not_ready(ckpt_engine* engine) {
  return on_engine(engine, [](auto& self) -> Outcome {
    self.own_not_ready();
    return {};
  });
}

ckpt_status ckpt_capture_next(ckpt_engine* engine) {
  return on_engine(engine, [](auto& self) -> Outcome {
    self.capture_next();
    return {};
  });
}

ckpt_status ckpt_wait_halt(ckpt_engine* engine, int64_t timeout_ms, ckpt_halt_t* halt) {
  return on_engine(engine, [&](const auto& self) -> Outcome {
    need(halt != nullptr, "the place for the halt");
    ckpt_halt_t found = CKPT_HALT_INIT;
    hand_over(found, halt, halt_bytes_first, "ckpt_halt_t");
    const Outcome outcome = self.wait_halt(timeout_ms, found);
    if (outcome.status == CKPT_OK) hand_over(found, halt, halt_bytes_first, "ckpt_halt_t");
    return outcome;
  });
}

ckpt_status ckpt_report_trouble(ckpt_engine* engine, const char* text) {
  return on_engine(engine, [&](auto& self) -> Outcome {
    need(text != nullptr, "the text");
    self.report_trouble(text);
    return {};
  });
}

ckpt_status ckpt_rejoin(ckpt_engine* engine) {
  return on_engine(engine, [](auto& self) -> Outcome {
    self.rejoin();
    return {};
  });
}

ckpt_status ckpt_comm_begin(ckpt_engine* engine, uint32_t channel, void* stream) {
  return on_engine(engine, [&](const auto& self) -> Outcome {
    if (stream == CKPT_NO_STREAM)
      self.comm_begin(channel);
    else
      self.comm_begin(channel, stream);
    return {};
  });
}

ckpt_status ckpt_comm_end(ckpt_engine* engine, uint32_t channel, void* stream) {
  return on_engine(engine, [&](const auto& self) {
    return stream == CKPT_NO_STREAM ? self.comm_end(channel) : self.comm_end(channel, stream);
  });
}

ckpt_status ckpt_bubble_begin(ckpt_engine* engine, void* stream) {
  return on_engine(engine, [&](auto& self) -> Outcome {
    self.bubble_begin(named_stream(stream));
    return {};
  });
}

ckpt_status ckpt_bubble_end(ckpt_engine* engine, void* stream) {
  return on_engine(engine, [&](auto& self) { return self.bubble_end(named_stream(stream)); });
}

ckpt_status ckpt_pause(ckpt_engine* engine, const char* name) {
  return on_engine(engine, [&](const auto& self) -> Outcome {
    need(name != nullptr, "the pause's name");
    self.pause(name);
    return {};
  });
}

ckpt_status ckpt_resume(ckpt_engine* engine) {
  return on_engine(engine, [](const auto& self) { return self.resume(); });
}

ckpt_status ckpt_snapshot_stage(ckpt_engine* engine, int64_t iteration, ckpt_stage* stage) {
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
    hand_over(self.health(), health, health_bytes_first, "ckpt_health_t");
    return {};
  });
}

ckpt_status ckpt_on_warning(ckpt_engine* engine, ckpt_warning_callback callback, void* user) {
  return on_engine(engine, [&](auto& self) -> Outcome {
    self.on_warning(callback, user);
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
    hand_over(self.stats(), stats, stats_bytes_first, "ckpt_stats_t");
    return {};
  });
}
