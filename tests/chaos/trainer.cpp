// One rank of a training job whose state anybody can compute: at iteration k, word i of a tensor is a pure function of
// (rank, tensor, k, i), so every rank and every iteration differ, and after a restore every byte can be compared.
//
//   chaos_trainer [bytes=N] [iteration_ms=N] [iterations=N] [lockstep=0|1]
//
// The engine's options come from the environment (CKPTENGINE_<KEY>). Each thing that happens is one line of JSON on
// stdout.
// With lockstep=1 every iteration begins with {"event":"ready"} and waits for a line on stdin:
//   go               one iteration
//   die MICROS       one iteration, and SIGKILL to itself so long after snapshot() returned: in the middle of a capture
//   freeze MICROS    likewise with SIGSTOP; once woken it trains on alone until it learns that it was superseded
//   stop (or EOF)    close the engine and end
// The exit status is the ckpt_status of what failed, or 0; of wrong bytes it is 100.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ckptengine/ckptengine.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr int wrong_bytes_status = 100;

// ---- Events ----

std::string quoted(const char* text) {
  std::string out = "\"";
  for (; *text != '\0'; ++text) {
    const auto c = static_cast<unsigned char>(*text);
    if (c == '"' || c == '\\') out += '\\';
    out += c < ' ' ? ' ' : static_cast<char>(c);
  }
  return out + "\"";
}

__attribute__((format(printf, 2, 3))) void say(const char* event, const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::printf("{\"event\": \"%s\"", event);
  std::vprintf(format, arguments);
  std::printf("}\n");
  std::fflush(stdout);
  va_end(arguments);
}

[[noreturn]] void fail(const char* call, ckpt_status status, const char* message = ckpt_last_error()) {
  say("failed", ", \"call\": \"%s\", \"status\": %d, \"message\": %s", call, static_cast<int>(status),
      quoted(message).c_str());
  std::exit(status);
}

void check(const char* call, ckpt_status status) {
  if (status != CKPT_OK) fail(call, status);
}

// ---- State ----

std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  return x ^ (x >> 32);
}

// The content of one tensor at one iteration.
class Content {
 public:
  Content(std::uint64_t rank, std::uint64_t tensor, std::int64_t iteration)
      : seed_(mixed(mixed(mixed(rank + 1) + tensor) + static_cast<std::uint64_t>(iteration))) {}

  void fill(std::vector<std::byte>& bytes) const {
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t value = word(at);
      std::memcpy(&bytes[at], &value, std::min(sizeof value, bytes.size() - at));
    }
  }

  // How many bytes differ, and where the first of them is.
  std::size_t count_wrong(const std::vector<std::byte>& bytes, std::size_t& first) const {
    std::size_t wrong = 0;
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t value = word(at);
      const std::size_t length = std::min(sizeof value, bytes.size() - at);
      if (std::memcmp(&bytes[at], &value, length) == 0) continue;
      const auto* expected = reinterpret_cast<const std::byte*>(&value);
      for (std::size_t i = 0; i < length; ++i) {
        if (bytes[at + i] != expected[i] && wrong++ == 0) first = at + i;
      }
    }
    return wrong;
  }

 private:
  std::uint64_t word(std::size_t at) const {
    const std::uint64_t x = (seed_ + at) * 0x9e3779b97f4a7c15u;
    return x ^ (x >> 32);
  }
  std::uint64_t seed_;
};

struct Tensor {
  std::string name;
  ckpt_dtype dtype;
  std::size_t element_bytes;
  std::vector<std::int64_t> shape;
  ckpt_capture capture;
  bool moves;               // lives at another address after every update
  std::int64_t created_at;  // iteration that creates it, as optimizers create their moments
  std::vector<std::byte> bytes;
  bool registered = false;
};

constexpr std::int64_t from_the_start = -1;

std::vector<Tensor> make_model(std::int64_t bytes, std::int64_t rank) {
  const std::int64_t rows = bytes / 1024;
  std::vector<Tensor> model = {
      {"embedding.weight", CKPT_F32, 4, {rows * 2 / 5, 256}, CKPT_OVERLAPPED, false, from_the_start, {}},
      {"exp_avg", CKPT_F32, 4, {rows / 5, 256}, CKPT_OVERLAPPED, false, 2, {}},
      {"master.weight", CKPT_F64, 8, {rows / 5, 128}, CKPT_OVERLAPPED, true, from_the_start, {}},
      {"empty", CKPT_F32, 4, {0, 16}, CKPT_OVERLAPPED, false, from_the_start, {}},
      {"step", CKPT_I64, 8, {}, CKPT_OVERLAPPED, false, from_the_start, {}},
      {"loss_scale", CKPT_F32, 4, {}, CKPT_OVERLAPPED, true, from_the_start, {}},
      {"running_mean", CKPT_F32, 4, {96}, CKPT_SYNCHRONOUS, false, from_the_start, {}},
      {"rng", CKPT_U8, 1, {5000 + rank}, CKPT_SYNCHRONOUS, true, from_the_start, {}},
      {"position", CKPT_I64, 8, {}, CKPT_SYNCHRONOUS, false, from_the_start, {}},
  };
  for (int layer = 0; layer < 8; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer);
    model.push_back({prefix + ".weight", CKPT_BF16, 2, {rows / 40, 512}, CKPT_OVERLAPPED, false, from_the_start, {}});
    model.push_back({prefix + ".mask", CKPT_BOOL, 1, {1237 + layer}, CKPT_OVERLAPPED, false, from_the_start, {}});
  }
  for (Tensor& tensor : model) {
    std::size_t elements = 1;
    for (const std::int64_t extent : tensor.shape) elements *= static_cast<std::size_t>(extent);
    tensor.bytes.resize(elements * tensor.element_bytes);
  }
  return model;
}

// ---- Training ----

struct Settings {
  std::map<std::string, std::int64_t> values = {
      {"bytes", 8 << 20}, {"iteration_ms", 10}, {"iterations", INT64_MAX}, {"lockstep", 0}};

  Settings(int count, char** words) {
    for (int i = 1; i < count; ++i) {
      const std::string word = words[i];
      const auto equals = word.find('=');
      const auto known = values.find(word.substr(0, equals));
      if (equals == std::string::npos || known == values.end()) {
        std::fprintf(stderr, "chaos_trainer: unknown argument '%s'\n", words[i]);
        std::exit(2);
      }
      known->second = std::atoll(word.c_str() + equals + 1);
    }
  }
  std::int64_t operator[](const char* key) const { return values.at(key); }
};

struct Order {
  std::string word = "go";
  std::int64_t micros = 0;
  bool strikes() const { return word == "die" || word == "freeze"; }
};

class Trainer {
 public:
  Trainer(const Settings& settings, std::int64_t rank)
      : settings_(settings), rank_(rank), model_(make_model(settings["bytes"], rank)) {
    check("create", ckpt_create(nullptr, 0, &engine_));
    for (Tensor& tensor : model_) {
      if (tensor.created_at == from_the_start) enroll(tensor);
    }
  }

  void restore();
  void train();
  void close() { ckpt_close(engine_); }

 private:
  void enroll(Tensor& tensor);
  void verify(const ckpt_restored& restored, double restore_ms);
  void update(std::int64_t iteration);
  void fill(Tensor& tensor, std::int64_t iteration);
  ckpt_status snapshot(std::int64_t iteration);
  void before_update();
  void notify_commits();
  Order next_order(std::int64_t iteration);
  void strike(const Order& order, std::int64_t iteration);
  void train_until_superseded(std::int64_t iteration);

  const Settings& settings_;
  const std::int64_t rank_;
  std::vector<Tensor> model_;
  ckpt_engine* engine_ = nullptr;
  std::int64_t next_ = 0;
  std::int64_t captured_ = -1;  // taken and not yet told captured
  std::int64_t notified_commit_ = -1;
  std::string input_;
};

void Trainer::enroll(Tensor& tensor) {
  ckpt_tensor description = CKPT_TENSOR_INIT;
  description.name = tensor.name.c_str();
  description.data = tensor.bytes.empty() ? nullptr : tensor.bytes.data();
  description.shape = tensor.shape.data();
  description.ndim = static_cast<std::int32_t>(tensor.shape.size());
  description.dtype = tensor.dtype;
  description.capture = tensor.capture;
  check("register_tensor", ckpt_register_tensor(engine_, &description));
  tensor.registered = true;
}

void Trainer::restore() {
  const auto begin = Clock::now();
  const char* layout = "";
  check("stored_layout", ckpt_stored_layout(engine_, &layout));
  for (Tensor& tensor : model_) {
    if (!tensor.registered && std::strstr(layout, ("\"" + tensor.name + "\"").c_str()) != nullptr) enroll(tensor);
  }
  ckpt_restored restored = CKPT_RESTORED_INIT;
  check("restore", ckpt_restore(engine_, CKPT_NO_STREAM, &restored));
  const std::string message = restored.message;
  const std::chrono::duration<double, std::milli> took = Clock::now() - begin;
  if (!message.empty()) say("remark", ", \"message\": %s", quoted(message.c_str()).c_str());
  verify(restored, took.count());
}

void Trainer::verify(const ckpt_restored& restored, double restore_ms) {
  std::size_t bytes = 0, wrong = 0, first = 0;
  std::string first_wrong;
  for (std::size_t i = 0; restored.found && i < model_.size(); ++i) {
    const Tensor& tensor = model_[i];
    const bool should_be_there = tensor.created_at <= restored.iteration;
    if (tensor.registered != should_be_there) {
      fail("stored_layout", CKPT_ERR_MISMATCH, (tensor.name + " is missing, or should not be there yet").c_str());
    }
    if (!tensor.registered) continue;
    const std::size_t here = Content(rank_, i, restored.iteration).count_wrong(tensor.bytes, first);
    if (here > 0 && wrong == 0) first_wrong = tensor.name + " at byte " + std::to_string(first);
    wrong += here;
    bytes += tensor.bytes.size();
  }
  say("restored",
      ", \"found\": %d, \"iteration\": %lld, \"incarnation\": %llu, \"behind\": %d, \"status_unknown\": %d, "
      "\"main_tier\": %d, \"private_tier\": %d, \"bytes\": %zu, \"wrong\": %zu, \"first_wrong\": \"%s\", "
      "\"restore_ms\": %.1f, \"fetch_ms\": %.1f, \"load_ms\": %.1f",
      restored.found, static_cast<long long>(restored.iteration), static_cast<unsigned long long>(restored.incarnation),
      restored.behind, restored.status_unknown, restored.main_tier, restored.private_tier, bytes, wrong,
      first_wrong.c_str(), restore_ms, restored.fetch_ms, restored.load_ms);
  if (wrong > 0) std::exit(wrong_bytes_status);
  next_ = restored.next_iteration;
}

void Trainer::fill(Tensor& tensor, std::int64_t iteration) {
  const auto index = static_cast<std::uint64_t>(&tensor - model_.data());
  Content(static_cast<std::uint64_t>(rank_), index, iteration).fill(tensor.bytes);
}

// Brings the state from iteration - 1 to `iteration`.
void Trainer::update(std::int64_t iteration) {
  for (Tensor& tensor : model_) {
    if (iteration < tensor.created_at) continue;
    if (!tensor.registered) enroll(tensor);
    if (tensor.moves) {
      std::vector<std::byte> elsewhere(tensor.bytes.size());
      tensor.bytes.swap(elsewhere);
      check("move_tensor", ckpt_move_tensor(engine_, tensor.name.c_str(), tensor.bytes.data()));
    }
    fill(tensor, iteration);
  }
}

// A failed snapshot must not harm training: it is told and training goes on.
ckpt_status Trainer::snapshot(std::int64_t iteration) {
  const ckpt_status status = ckpt_snapshot(engine_, iteration, CKPT_NO_STREAM);
  say("snapshot", ", \"iteration\": %lld, \"status\": %d, \"message\": %s", static_cast<long long>(iteration),
      static_cast<int>(status), status == CKPT_OK ? "\"\"" : quoted(ckpt_last_error()).c_str());
  if (status == CKPT_OK) captured_ = iteration;
  // The next forward pass changes what is captured synchronously, while the rest is still being copied.
  for (Tensor& tensor : model_) {
    if (tensor.capture == CKPT_SYNCHRONOUS) std::fill(tensor.bytes.begin(), tensor.bytes.end(), std::byte{0xee});
  }
  return status;
}

void Trainer::before_update() {
  const ckpt_status status = ckpt_before_update(engine_, nullptr, 0);
  if (captured_ >= 0) {
    say("captured", ", \"iteration\": %lld, \"status\": %d, \"message\": %s", static_cast<long long>(captured_),
        static_cast<int>(status), status == CKPT_OK ? "\"\"" : quoted(ckpt_last_error()).c_str());
  }
  captured_ = -1;
}

void Trainer::notify_commits() {
  ckpt_stats_t stats = CKPT_STATS_INIT;
  check("stats", ckpt_stats(engine_, &stats));
  if (stats.committed_iteration <= notified_commit_) return;
  notified_commit_ = stats.committed_iteration;
  say("committed", ", \"iteration\": %lld", static_cast<long long>(notified_commit_));
}

// Waits for a line on stdin, and tells of commits meanwhile.
Order Trainer::next_order(std::int64_t iteration) {
  if (settings_["lockstep"] == 0) return {};
  say("ready", ", \"iteration\": %lld", static_cast<long long>(iteration));
  while (input_.find('\n') == std::string::npos) {
    notify_commits();
    pollfd ready = {STDIN_FILENO, POLLIN, 0};
    if (poll(&ready, 1, 2) <= 0) continue;
    char buffer[256];
    const ssize_t got = read(STDIN_FILENO, buffer, sizeof buffer);
    if (got <= 0) return {"stop", 0};
    input_.append(buffer, static_cast<std::size_t>(got));
  }
  const std::string line = input_.substr(0, input_.find('\n'));
  input_.erase(0, line.size() + 1);
  const auto space = line.find(' ');
  return {line.substr(0, space), space == std::string::npos ? 0 : std::atoll(line.c_str() + space)};
}

void Trainer::strike(const Order& order, std::int64_t iteration) {
  std::this_thread::sleep_for(std::chrono::microseconds(order.micros));
  ckpt_stage stage = CKPT_STAGE_NONE;
  check("snapshot_stage", ckpt_snapshot_stage(engine_, iteration, &stage));
  say("struck", ", \"iteration\": %lld, \"stage\": %d", static_cast<long long>(iteration), static_cast<int>(stage));
  kill(getpid(), order.word == "die" ? SIGKILL : SIGSTOP);
  train_until_superseded(iteration);
}

// A process that slept through the restart of its job: it must learn that it is not of this incarnation any more.
void Trainer::train_until_superseded(std::int64_t iteration) {
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  ckpt_status status = CKPT_OK;
  while (status != CKPT_ERR_SUPERSEDED && Clock::now() < deadline) {
    before_update();
    update(++iteration);
    status = snapshot(iteration);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  say("woke", ", \"status\": %d, \"message\": %s", static_cast<int>(status), quoted(ckpt_last_error()).c_str());
  ckpt_close(engine_);
  std::exit(status == CKPT_ERR_SUPERSEDED ? 0 : CKPT_ERR_INTERNAL);
}

void Trainer::train() {
  Order pending;
  for (std::int64_t iteration = next_; iteration < settings_["iterations"]; ++iteration) {
    const Order order = next_order(iteration);
    if (order.word == "stop") return;
    if (order.strikes()) pending = order;
    std::this_thread::sleep_for(std::chrono::milliseconds(settings_["iteration_ms"]));  // forward and backward pass
    before_update();
    notify_commits();
    update(iteration);
    const ckpt_status status = snapshot(iteration);
    if (status == CKPT_ERR_SUPERSEDED) fail("snapshot", status);
    if (pending.strikes() && status == CKPT_OK) strike(pending, iteration);
  }
  before_update();
}

}  // namespace

int main(int count, char** words) {
  const Settings settings(count, words);
  const char* rank = std::getenv("CKPTENGINE_RANK");
  Trainer trainer(settings, rank == nullptr ? 0 : std::atoll(rank));
  trainer.restore();
  trainer.train();
  trainer.close();
  say("ended", ", \"status\": 0");
}
