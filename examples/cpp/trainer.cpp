// A training loop without Python: logistic regression by SGD with momentum, with a snapshot in every iteration.
//
//   trainer ITERATIONS [KEY=VALUE ...]       options of the engine, see docs/options.md
//
// Run it, kill it at any moment, run it again: it goes on after the newest committed iteration, with the same losses,
// because weights, momentum and random numbers come back of one checkpoint. Without options it is the only rank of the
// job "cpp-trainer", and the engine starts the node's agent; `ckptctl stop job=cpp-trainer` ends that, and
// `ckptctl gc job=cpp-trainer` frees the memory.
#include <algorithm>
#include <array>
#include <charconv>
#include <ckptengine/engine.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr std::size_t features = 1 << 14;
constexpr std::size_t features_per_example = 64;
constexpr std::size_t batch = 2048;
constexpr float learning_rate = 4;

// SplitMix64: a generator whose state is plain memory, so that it can be captured as it is.
struct Random {
  std::uint64_t state = 1;
  std::uint64_t next() {
    std::uint64_t z = (state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
};

struct Model {
  std::vector<float> weights = std::vector<float>(features);
  std::vector<float> momentum = std::vector<float>(features);
  std::vector<float> gradient = std::vector<float>(features);  // made anew in each iteration: not captured
};

// Mean loss and gradient of random examples, whose label says whether most of their features are odd. Changes nothing
// that is captured while training goes on.
double forward_backward(Model& model, Random& random) {
  std::fill(model.gradient.begin(), model.gradient.end(), 0.0f);
  double loss = 0;
  for (std::size_t example = 0; example < batch; ++example) {
    std::array<std::size_t, features_per_example> seen;
    std::size_t odd = 0;
    float sum = 0;
    for (std::size_t& feature : seen) {
      feature = random.next() % features;
      odd += feature & 1;
      sum += model.weights[feature];
    }
    const float label = odd > features_per_example / 2 ? 1.0f : 0.0f;
    const float slope = 1 / (1 + std::exp(-sum)) - label;
    loss += std::log1p(std::exp(label > 0 ? -sum : sum)) / batch;
    for (const std::size_t feature : seen) model.gradient[feature] += slope / batch;
  }
  return loss;
}

void update(Model& model) {
  for (std::size_t i = 0; i < features; ++i) {
    model.momentum[i] = 0.9f * model.momentum[i] + model.gradient[i];
    model.weights[i] -= learning_rate * model.momentum[i];
  }
}

ckpt::Options options_from(int count, char** words) {
  ckpt::Options options = ckpt::Options::from_env();
  options.set("job", "cpp-trainer").set("rank", 0).set("world_size", 1).set("copies", 1);
  for (int i = 0; i < count; ++i) {
    const std::string_view word = words[i];
    const std::size_t equals = word.find('=');
    if (equals == std::string_view::npos)
      throw ckpt::Error(CKPT_ERR_INVALID, std::string(word) + " is no option; write KEY=VALUE");
    options.set(std::string(word.substr(0, equals)), std::string(word.substr(equals + 1)));
  }
  return options;
}

void train(std::int64_t iterations, const ckpt::Options& options) {
  Model model;
  Random random;
  ckpt::Engine engine(options);
  engine.register_tensor("weights", model.weights.data(), CKPT_F32, {features});
  engine.register_tensor("momentum", model.momentum.data(), CKPT_F32, {features});
  engine.register_blob("random", &random, sizeof random);

  const ckpt::Restored start = engine.restore();
  if (start.found)
    std::printf("restored iteration %lld in %.1f ms\n", static_cast<long long>(start.iteration),
                start.fetch_ms + start.load_ms);
  if (!start.message.empty()) std::printf("%s\n", start.message.c_str());

  for (std::int64_t k = start.next_iteration; k < iterations; ++k) {
    const double loss = forward_backward(model, random);
    engine.before_update();  // weights and momentum change from here on
    update(model);
    const ckpt::Ticket ticket = engine.snapshot(k);
    if (!ticket && ticket.status() != CKPT_SKIPPED) std::printf("%s\n", ticket.message().c_str());
    if (k % 100 == 0) std::printf("iteration %lld loss %a\n", static_cast<long long>(k), loss);
  }
  engine.before_update();  // makes the last snapshot known

  const ckpt_stats_t stats = engine.stats();
  std::printf("%llu snapshots taken, %llu skipped, newest commit heard of: %lld\n",
              static_cast<unsigned long long>(stats.snapshots), static_cast<unsigned long long>(stats.skipped),
              static_cast<long long>(stats.committed_iteration));
}

}  // namespace

int main(int count, char** words) {
  std::int64_t iterations = 0;
  if (count < 2 || std::from_chars(words[1], words[1] + std::strlen(words[1]), iterations).ec != std::errc()) {
    std::fprintf(stderr, "usage: %s ITERATIONS [KEY=VALUE ...]\n", words[0]);
    return 2;
  }
  try {
    train(iterations, options_from(count - 2, words + 2));
  } catch (const ckpt::Error& error) {
    std::fprintf(stderr, "trainer: %s\n", error.what());
    return 1;
  }
  return 0;
}
