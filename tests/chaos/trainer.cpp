// One rank of a training job whose state is known, so that after a restore every byte can be compared.
//
//   chaos_trainer [bytes=N] [iteration_ms=N] [iterations=N] [lockstep=0|1]
//                 [digests=FOLDER cut=own|shared|split [exchange=FOLDER]]
//                 [strike_in=STAGE strike_with=die|freeze strike_us=N]
//
// Without `digests`, the state is a pure function of rank and iteration (tensors.hpp). With it, AdamW updates the state
// (optimizer.hpp). `cut=split` can restart with another number of ranks (takeover.hpp), which share the folder
// `exchange`. The engine's options come from the environment (CKPTENGINE_<KEY>). Each thing that happens is one line of
// JSON on stdout.
// With lockstep=1 every iteration begins with {"event":"ready"} and waits for a line on stdin:
//   go               one iteration
//   die MICROS       one iteration, and SIGKILL to itself so long after snapshot() returned: in the middle of a capture
//   freeze MICROS    likewise with SIGSTOP; once woken it trains on alone until it learns that it was superseded
//   stop (or EOF)    close the engine and end
// `strike_in`: likewise, so long after a stage of the restore has begun: decide, load, exchange, restore or trained,
// which comes after it. Once woken, it goes on.
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
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ckptengine/ckptengine.h"
#include "optimizer.hpp"
#include "takeover.hpp"
#include "tensors.hpp"

namespace {

using namespace ckpt::chaos;

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

// ---- Training ----

struct Settings {
  std::map<std::string, std::string> values = {
      {"bytes", "8388608"}, {"iteration_ms", "10"}, {"iterations", "9223372036854775807"},
      {"lockstep", "0"},    {"digests", ""},        {"cut", "own"},
      {"exchange", ""},     {"strike_in", ""},      {"strike_with", "die"},
      {"strike_us", "0"}};

  Settings(int count, char** words) {
    for (int i = 1; i < count; ++i) {
      const std::string word = words[i];
      const auto equals = word.find('=');
      const auto known = values.find(word.substr(0, equals));
      if (equals == std::string::npos || known == values.end()) {
        std::fprintf(stderr, "chaos_trainer: unknown argument '%s'\n", words[i]);
        std::exit(2);
      }
      known->second = word.substr(equals + 1);
    }
  }
  std::int64_t operator[](const char* key) const { return std::atoll(values.at(key).c_str()); }
  const std::string& text(const char* key) const { return values.at(key); }
};

std::int64_t from_environment(const char* key, std::int64_t otherwise) {
  const char* value = std::getenv(key);
  return value == nullptr ? otherwise : std::atoll(value);
}

struct Order {
  std::string word = "go";
  std::int64_t micros = 0;
  bool strikes() const { return word == "die" || word == "freeze"; }
};

class Trainer {
 public:
  Trainer(const Settings& settings, std::int64_t rank)
      : settings_(settings),
        rank_(rank),
        world_size_(from_environment("CKPTENGINE_WORLD_SIZE", 1)),
        cut_(cut_named(settings.text("cut"))) {
    if (settings.text("digests").empty()) {
      model_ = content_model(settings["bytes"], rank);
    } else {
      optimizer_.emplace(settings.text("digests"), cut_, rank, world_size_, settings["bytes"]);
      model_ = optimizer_->make_model();
    }
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
  void enter(const char* stage);
  void take_over(const char* layout);
  std::int64_t content_rank(const Tensor& tensor, std::int64_t private_rank) const;
  std::size_t count_wrong(const ckpt_restored& restored, std::string& first_wrong) const;
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
  const std::int64_t rank_, world_size_;
  const Cut cut_;
  std::optional<Optimizer> optimizer_;
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

// A stage of the restore begins.
void Trainer::enter(const char* stage) {
  say("stage", ", \"name\": \"%s\"", stage);
  if (settings_.text("strike_in") != stage) return;
  std::thread([us = settings_["strike_us"], signal = settings_.text("strike_with") == "die" ? SIGKILL : SIGSTOP] {
    std::this_thread::sleep_for(std::chrono::microseconds(us));
    kill(getpid(), signal);
  }).detach();
}

void Trainer::take_over(const char* layout) {
  const auto stored = nlohmann::ordered_json::parse(layout);
  if (!stored.contains("taken")) return;
  Takeover takeover(engine_, stored, settings_.text("exchange"), [this](const char* stage) { enter(stage); });
  takeover.load();
  takeover.fill(model_, *optimizer_, rank_, world_size_);
}

void Trainer::restore() {
  const auto begin = Clock::now();
  enter("decide");
  if (cut_ == Cut::split) check("take_shards", ckpt_take_shards(engine_));
  const char* layout = "";
  // Ranks that share their shard know their tensors, so they need not ask.
  if (cut_ != Cut::shared) check("stored_layout", ckpt_stored_layout(engine_, &layout));
  for (Tensor& tensor : model_) {
    if (!tensor.registered && std::strstr(layout, ("\"" + tensor.name + "\"").c_str()) != nullptr) enroll(tensor);
  }
  if (cut_ == Cut::split) take_over(layout);
  enter("restore");
  ckpt_restored restored = CKPT_RESTORED_INIT;
  check("restore", ckpt_restore(engine_, CKPT_NO_STREAM, &restored));
  const std::string message = restored.message;
  const std::chrono::duration<double, std::milli> took = Clock::now() - begin;
  if (!message.empty()) say("remark", ", \"message\": %s", quoted(message.c_str()).c_str());
  verify(restored, took.count());
  enter("trained");
}

// The rank whose content the tensor has. Ranks that share or split their state have the same, except for synchronous
// tensors.
std::int64_t Trainer::content_rank(const Tensor& tensor, std::int64_t private_rank) const {
  return cut_ == Cut::own ? rank_ : tensor.capture == CKPT_SYNCHRONOUS ? private_rank : 0;
}

std::size_t Trainer::count_wrong(const ckpt_restored& restored, std::string& first_wrong) const {
  std::size_t wrong = optimizer_ ? optimizer_->count_wrong(model_, restored.iteration, first_wrong) : 0;
  for (std::size_t i = 0; i < model_.size(); ++i) {
    const Tensor& tensor = model_[i];
    if (!tensor.registered || tensor.kind != Tensor::Kind::content) continue;
    std::size_t first = 0;
    const auto rank = static_cast<std::uint64_t>(content_rank(tensor, restored.adopted != 0 ? 0 : rank_));
    const std::size_t here = Content(rank, i, restored.iteration).count_wrong(tensor.bytes, first);
    if (here > 0 && wrong == 0) first_wrong = tensor.name + " at byte " + std::to_string(first);
    wrong += here;
  }
  return wrong;
}

void Trainer::verify(const ckpt_restored& restored, double restore_ms) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; restored.found && i < model_.size(); ++i) {
    const Tensor& tensor = model_[i];
    const bool should_be_there = tensor.created_at <= restored.iteration;
    if (tensor.registered != should_be_there) {
      fail("stored_layout", CKPT_ERR_MISMATCH, (tensor.name + " is missing, or should not be there yet").c_str());
    }
    if (tensor.registered) bytes += tensor.bytes.size();
  }
  std::string first_wrong;
  const std::size_t wrong = restored.found ? count_wrong(restored, first_wrong) : 0;
  say("restored",
      ", \"found\": %d, \"iteration\": %lld, \"incarnation\": %llu, \"behind\": %d, \"status_unknown\": %d, "
      "\"main_tier\": %d, \"private_tier\": %d, \"bytes\": %zu, \"wrong\": %zu, \"first_wrong\": \"%s\", "
      "\"restore_ms\": %.1f, \"fetch_ms\": %.1f, \"load_ms\": %.1f, \"stored_world_size\": %d",
      restored.found, static_cast<long long>(restored.iteration), static_cast<unsigned long long>(restored.incarnation),
      restored.behind, restored.status_unknown, restored.main_tier, restored.private_tier, bytes, wrong,
      first_wrong.c_str(), restore_ms, restored.fetch_ms, restored.load_ms,
      static_cast<int>(restored.stored_world_size));
  if (wrong > 0) std::exit(wrong_bytes_status);
  next_ = restored.next_iteration;
}

void Trainer::fill(Tensor& tensor, std::int64_t iteration) {
  const auto index = static_cast<std::uint64_t>(&tensor - model_.data());
  Content(static_cast<std::uint64_t>(content_rank(tensor, rank_)), index, iteration).fill(tensor.bytes);
}

// Brings the state from iteration - 1 to `iteration`.
void Trainer::update(std::int64_t iteration) {
  if (optimizer_) optimizer_->give_gradients(engine_, iteration);
  for (Tensor& tensor : model_) {
    if (iteration < tensor.created_at) continue;
    if (!tensor.registered) enroll(tensor);
    if (tensor.moves) {
      std::vector<std::byte> elsewhere = tensor.bytes;
      tensor.bytes.swap(elsewhere);
      check("move_tensor", ckpt_move_tensor(engine_, tensor.name.c_str(), tensor.bytes.data()));
    }
    if (tensor.kind == Tensor::Kind::content) fill(tensor, iteration);
  }
  if (!optimizer_ || optimizer_->update(model_, iteration)) return;
  say("diverged", ", \"iteration\": %lld", static_cast<long long>(iteration));
  std::exit(wrong_bytes_status);
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

int main(int count, char** words) try {
  const Settings settings(count, words);
  Trainer trainer(settings, from_environment("CKPTENGINE_RANK", 0));
  trainer.restore();
  trainer.train();
  trainer.close();
  say("ended", ", \"status\": 0");
} catch (const std::exception& error) {
  fail("chaos_trainer", CKPT_ERR_INTERNAL, error.what());
}
