// A training loop without Python: logistic regression by SGD with momentum, with a snapshot in every iteration.
//
//   trainer ITERATIONS [KEY=VALUE ...]       options of the engine, see docs/options.md
//
// Run it, kill it at any moment, run it again: it goes on after the newest committed iteration, with the same losses,
// because weights, momentum and random numbers come back at one version. Without options it is the only rank of the
// job "cpp-trainer", and the engine starts the node's agent; `ckptctl stop job=cpp-trainer` ends that, and
// `ckptctl gc job=cpp-trainer` frees the memory.
#include <array>
#include <charconv>
#include <ckptengine/engine.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

namespace {

constexpr std::size_t features = 1 << 14;
constexpr std::size_t seen_features = 64;  // of one example

struct Model {
  std::vector<float> weights = std::vector<float>(features);
  std::vector<float> momentum = std::vector<float>(features);
};

struct Example {
  std::array<std::size_t, seen_features> indices;
  float label;
};

// A generator whose state is plain memory, so that it can be captured as it is.
struct Random {
  std::uint64_t state = 1;
  using result_type = std::uint64_t;
  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return UINT64_MAX; }
  result_type operator()() {
    std::uint64_t z = (state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
};

Example draw(Random& random) {
  Example example{};
  std::size_t votes = 0;
  for (std::size_t& index : example.indices) {
    index = random() % features;
    votes += index & 1;
  }
  example.label = votes > seen_features / 2 ? 1.0f : 0.0f;
  return example;
}

// Forward and backward: reads the weights, changes nothing that is captured but the random state.
float forward_backward(const Model& model, const Example& example, float& slope) {
  float sum = 0;
  for (const std::size_t index : example.indices) sum += model.weights[index];
  const float guess = 1 / (1 + std::exp(-sum));
  slope = guess - example.label;
  return -std::log(example.label > 0 ? guess : 1 - guess);
}

void update(Model& model, const Example& example, float slope) {
  for (const std::size_t index : example.indices) {
    model.momentum[index] = 0.9f * model.momentum[index] + slope;
    model.weights[index] -= 0.1f * model.momentum[index];
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
    const Example example = draw(random);
    float slope = 0;
    const float loss = forward_backward(model, example, slope);
    engine.before_update();  // weights and momentum change from here on
    update(model, example, slope);
    const ckpt::Ticket ticket = engine.snapshot(k);
    if (!ticket && ticket.status() != CKPT_ERR_SKIPPED)
      std::printf("iteration %lld: %s\n", static_cast<long long>(k), ticket.message().c_str());
    if (k % 1000 == 0 || k + 1 == iterations) std::printf("iteration %lld loss %a\n", static_cast<long long>(k), loss);
  }
  const ckpt_stats_t stats = engine.stats();
  std::printf("%llu snapshots taken, %llu skipped, newest commit %lld\n",
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
