#include "optimizer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace ckpt::chaos {
namespace {

constexpr std::uint64_t block_elements = 8192;
constexpr std::array<const char*, 3> parts = {".weight", ".exp_avg", ".exp_avg_sq"};
constexpr double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;

std::uint64_t block_count(std::uint64_t elements) { return (elements + block_elements - 1) / block_elements; }

// In some iterations, a scaler skips the update, the last parameter has no gradient, one parameter has a bfloat16
// gradient, or other code changes the first parameter after the update. The engine cannot repeat what other code does.
bool is_skipped(std::int64_t iteration) { return iteration % 17 == 12; }
bool has_gradient(std::size_t number, std::int64_t iteration) { return number != 2 || iteration % 7 != 4; }
bool is_short(std::size_t number, std::int64_t iteration) { return number == 1 && iteration % 5 == 3; }
bool is_rescaled(std::size_t number, std::int64_t iteration) { return number == 0 && iteration % 11 == 6; }

// A bfloat16: the upper half of a float.
std::uint16_t shortened(float value) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16); }

float as_float(double value) { return static_cast<float>(value); }
float* floats(Tensor& tensor) { return reinterpret_cast<float*>(tensor.bytes.data()); }
const float* floats(const Tensor& tensor) { return reinterpret_cast<const float*>(tensor.bytes.data()); }

// Between -0.5 and 0.5.
float number_of(std::uint64_t seed, std::uint64_t element) {
  std::uint64_t x = (seed + element) * 0x9e3779b97f4a7c15u;
  x ^= x >> 32;
  return static_cast<float>((x * 0xd6e8feb86659fd93u) >> 40) / (1 << 24) - 0.5F;
}

}  // namespace

Cut cut_named(const std::string& name) {
  if (name == "own") return Cut::own;
  if (name == "shared") return Cut::shared;
  if (name == "split") return Cut::split;
  throw std::runtime_error("cut=" + name + " is neither own, shared nor split");
}

Range range_of(std::uint64_t elements, std::uint64_t rank, std::uint64_t world_size) {
  const std::uint64_t blocks = block_count(elements);
  const auto edge = [&](std::uint64_t of) { return std::min(elements, blocks * of / world_size * block_elements); };
  return {edge(rank), edge(rank + 1)};
}

// ---- Digests ----

DigestLog::DigestLog(const std::string& path, std::uint64_t blocks)
    : file_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)), blocks_(blocks) {
  if (file_ < 0) throw std::runtime_error("cannot open " + path);
}

std::int64_t DigestLog::place(std::int64_t iteration, std::uint64_t block) const {
  return static_cast<std::int64_t>((static_cast<std::uint64_t>(iteration) * blocks_ + block) * sizeof(std::uint64_t));
}

std::uint64_t DigestLog::read(std::int64_t iteration, std::uint64_t block) const {
  std::uint64_t digest = 0;
  return pread(file_, &digest, sizeof digest, place(iteration, block)) == sizeof digest ? digest : 0;
}

void DigestLog::write(std::int64_t iteration, std::uint64_t block, std::uint64_t digest) const {
  if (pwrite(file_, &digest, sizeof digest, place(iteration, block)) != sizeof digest)
    throw std::runtime_error("cannot write a digest");
}

// ---- The state ----

Optimizer::Optimizer(const std::string& folder, Cut cut, std::uint64_t rank, std::uint64_t world_size,
                     std::uint64_t bytes)
    : cut_(cut),
      rank_(rank),
      world_size_(world_size),
      seed_(mixed(cut == Cut::own ? rank + 1 : 0)),
      parameters_(3),
      log_(folder + "/" + (cut == Cut::own ? "rank" + std::to_string(rank) : "all"), [&] {
        const std::uint64_t all = bytes / (parts.size() * sizeof(float));
        const std::array<std::uint64_t, 3> elements = {all / 2 + 5, all / 3 + 3, all / 6 + 1};
        std::uint64_t blocks = 0;
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
          parameters_[i] = {"layer" + std::to_string(i), elements[i], {0, elements[i]}, blocks, i == 2 ? 0 : 0.1};
          if (cut == Cut::split) parameters_[i].here = range_of(elements[i], rank, world_size);
          blocks += block_count(elements[i]);
        }
        return blocks;
      }()) {}

std::vector<Tensor> Optimizer::make_model() const {
  constexpr auto trained = Tensor::Kind::trained;
  std::vector<Tensor> model;
  for (const Parameter& each : parameters_) {
    const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(each.here.size())};
    for (const char* part : parts) {
      const bool moves = each.name == "layer1" && part == parts[1];
      model.push_back({each.name + part, CKPT_F32, 4, shape, CKPT_OVERLAPPED, moves, from_the_start, trained});
    }
  }
  model.push_back({"empty", CKPT_F32, 4, {0, 16}, CKPT_OVERLAPPED, false, from_the_start});
  model.push_back({"step", CKPT_I64, 8, {}, CKPT_OVERLAPPED, false, from_the_start});
  model.push_back({"average", CKPT_F32, 4, {96}, CKPT_OVERLAPPED, true, from_the_start});
  model.push_back({"running_mean", CKPT_F32, 4, {96}, CKPT_SYNCHRONOUS, false, from_the_start});
  model.push_back({"rng", CKPT_U8, 1, {5000}, CKPT_SYNCHRONOUS, true, from_the_start});
  model.push_back({"position", CKPT_I64, 8, {}, CKPT_SYNCHRONOUS, false, from_the_start});
  if (cut_ == Cut::split)
    model.push_back({"cut", CKPT_I64, 8, {2}, CKPT_OVERLAPPED, false, from_the_start, Tensor::Kind::constant});
  allocate(model);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Range& here = parameters_[i].here;
    float* const weight = floats(model[i * parts.size()]);
    for (std::uint64_t at = here.begin; at < here.end; ++at)
      weight[at - here.begin] = number_of(mixed(seed_ + i + 1), at);
  }
  const std::array<std::uint64_t, 2> cut = {rank_, world_size_};
  if (cut_ == Cut::split) std::memcpy(model.back().bytes.data(), cut.data(), sizeof cut);
  return model;
}

std::uint64_t Optimizer::whole_elements(const std::string& tensor) const {
  for (const Parameter& each : parameters_)
    if (tensor.starts_with(each.name + ".")) return each.elements;
  return 0;
}

// ---- Updates ----

float Optimizer::gradient(std::size_t number, std::int64_t iteration, std::uint64_t element) const {
  const float value = number_of(mixed(seed_ + 1000 * number + mixed(static_cast<std::uint64_t>(iteration))), element);
  // Not with ?: or if, which GCC 12 compiles to code that forgets the mask.
  const std::uint32_t mask = is_short(number, iteration) ? 0xffff0000u : ~std::uint32_t{0};
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & mask);
}

void Optimizer::give_gradients(ckpt_engine* engine, std::int64_t iteration) {
  std::int32_t wants = 0;
  if (ckpt_wants_gradients(engine, &wants) != CKPT_OK) throw std::runtime_error(ckpt_last_error());
  for (std::size_t i = 0; wants != 0 && i < parameters_.size() && !is_skipped(iteration); ++i) {
    if (!has_gradient(i, iteration)) continue;
    const Parameter& parameter = parameters_[i];
    const std::array<std::string, 3> names = {parameter.name + parts[0], parameter.name + parts[1],
                                              parameter.name + parts[2]};
    ckpt_gradient_t given = CKPT_GRADIENT_INIT;
    given.parameter = names[0].c_str();
    given.first_moment = names[1].c_str();
    given.second_moment = names[2].c_str();
    given.elements = parameter.here.size();
    gradients_.resize(given.elements);
    for (std::uint64_t at = 0; at < given.elements; ++at)
      gradients_[at] = gradient(i, iteration, parameter.here.begin + at);
    given.data = gradients_.data();
    if (is_short(i, iteration)) {
      short_gradients_.clear();
      for (const float each : gradients_) short_gradients_.push_back(shortened(each));
      given.data = short_gradients_.data();
      given.dtype = CKPT_BF16;
    }
    given.decoupled_weight_decay = 1;
    given.step = static_cast<double>(iteration + 1);
    given.learning_rate = learning_rate;
    given.beta1 = beta1;
    given.beta2 = beta2;
    given.epsilon = epsilon;
    given.weight_decay = parameter.weight_decay;
    const ckpt_status status = ckpt_add_gradient(engine, &given);
    if (status != CKPT_OK && status != CKPT_SKIPPED) throw std::runtime_error(ckpt_last_error());
  }
}

void Optimizer::step(std::vector<Tensor>& model, std::size_t number, std::int64_t iteration) const {
  const Parameter& parameter = parameters_[number];
  const double steps = static_cast<double>(iteration + 1);
  const float shrink = as_float(1 - learning_rate * parameter.weight_decay), lerp = as_float(1 - beta1);
  const float decay = as_float(beta2), square = as_float(1 - beta2);
  const float root_divisor = as_float(std::sqrt(1 - std::pow(beta2, steps)));
  const float negative_rate = as_float(-(learning_rate / (1 - std::pow(beta1, steps))));
  float *const weight = floats(model[3 * number]), *const first = floats(model[3 * number + 1]),
               *const second = floats(model[3 * number + 2]);
  for (std::uint64_t at = 0; at < parameter.here.size(); ++at) {
    const float by = gradient(number, iteration, parameter.here.begin + at);
    first[at] = lerp * (by - first[at]) + first[at];
    second[at] = (square * by) * by + second[at] * decay;
    const float divisor = std::sqrt(second[at]) / root_divisor + as_float(epsilon);
    weight[at] = weight[at] * shrink + (negative_rate * first[at]) / divisor;
    if (is_rescaled(number, iteration)) weight[at] *= 0.75F;
  }
}

template <class Visit>
void Optimizer::for_each_block(const Visit& visit) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& each = parameters_[i];
    for (std::uint64_t begin = each.here.begin; begin < each.here.end; begin += block_elements)
      visit(i, each.first_block + begin / block_elements,
            Range{begin, std::min(begin + block_elements, each.here.end)});
  }
}

// Never 0.
std::uint64_t Optimizer::digest(const std::vector<Tensor>& model, std::size_t number, const Range& block) const {
  std::uint64_t digest = 1;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const float* const values = floats(model[3 * number + part]) + (block.begin - parameters_[number].here.begin);
    for (std::uint64_t at = 0; at < block.size(); ++at) {
      digest = (digest ^ std::bit_cast<std::uint32_t>(values[at])) * 0x9e3779b97f4a7c15u;
      digest ^= digest >> 32;
    }
  }
  return digest | 1;
}

bool Optimizer::update(std::vector<Tensor>& model, std::int64_t iteration) {
  for (std::size_t i = 0; i < parameters_.size() && !is_skipped(iteration); ++i)
    if (has_gradient(i, iteration)) step(model, i, iteration);
  bool is_same = true;
  for_each_block([&](std::size_t number, std::uint64_t index, const Range& block) {
    const std::uint64_t now = digest(model, number, block), before = log_.read(iteration, index);
    is_same = is_same && (before == 0 || before == now);
    if (before == 0) log_.write(iteration, index, now);
  });
  return is_same;
}

std::size_t Optimizer::count_wrong(const std::vector<Tensor>& model, std::int64_t iteration, std::string& first) const {
  std::size_t wrong = 0;
  for_each_block([&](std::size_t number, std::uint64_t index, const Range& block) {
    if (digest(model, number, block) == log_.read(iteration, index)) return;
    if (wrong++ == 0) first = parameters_[number].name + " from element " + std::to_string(block.begin);
  });
  return wrong;
}

}  // namespace ckpt::chaos
