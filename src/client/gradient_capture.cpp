#include "client/gradient_capture.hpp"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/error.hpp"

namespace ckpt::client {
namespace {

constexpr std::size_t torch_version_bytes_max = 128;

std::uint64_t whole_floats(std::uint64_t bytes) { return (bytes + 3) / sizeof(float) * sizeof(float); }

kernels::AdamStep adam_step_of(const ckpt_gradient_t& gradient) {
  return kernels::adam_step(
      {.learning_rate = gradient.learning_rate,
       .beta1 = gradient.beta1,
       .beta2 = gradient.beta2,
       .epsilon = gradient.epsilon,
       .weight_decay = gradient.weight_decay,
       .decoupled_weight_decay = gradient.decoupled_weight_decay != 0,
       .amsgrad = gradient.largest_second_moment != nullptr,
       .maximize = gradient.maximize != 0},
      gradient.step,
      {kernels::TorchForm::fused,
       gradient.cpu_has_fma != 0 ? kernels::TorchCapability::avx2 : kernels::TorchCapability::standard});
}

bool is_same(const kernels::AdamStep& a, const kernels::AdamStep& b) {
  const auto key = [](const kernels::AdamStep& s) {
    return std::tuple(s.arithmetic.vectors, s.shrink, s.weight_decay, s.lerp, s.beta2, s.square, s.root_divisor,
                      s.epsilon, s.negative_rate, s.shrinks, s.decays, s.lerp_from_gradient, s.amsgrad, s.maximize);
  };
  return key(a) == key(b);
}

}  // namespace

void GradientCapture::updating(std::optional<CheckpointId> base) {
  base_ = base;
  given_.clear();
  record_ = {};
  staged_bytes_ = 0;
  is_updated_.assign(is_updated_.size(), false);
}

std::string GradientCapture::give_up(std::string why) {
  updating(std::nullopt);
  return why;
}

const arena::LayoutEntry* GradientCapture::find(const char* name, const RankState& state) {
  const auto& entries = state.main.layout.entries;
  if (layout_hash_ != state.main.layout_hash || entries_.size() != entries.size()) {
    entries_.clear();
    for (std::size_t i = 0; i < entries.size(); ++i) entries_.emplace(entries[i].name, i);
    layout_hash_ = state.main.layout_hash;
    is_updated_.assign(entries.size(), false);
  }
  const auto found = name == nullptr ? entries_.end() : entries_.find(name);
  if (found == entries_.end())
    throw Failure(CKPT_ERR_INVALID, std::string("a gradient names the tensor \"") + (name == nullptr ? "" : name) +
                                        "\", which is not registered with capture CKPT_OVERLAPPED; register it first");
  return &entries[found->second];
}

std::uint64_t GradientCapture::place_of(const char* name, std::uint64_t elements, const RankState& state) {
  const arena::LayoutEntry* entry = find(name, state);
  if (entry->dtype != CKPT_F32 || entry->size_bytes != elements * sizeof(float))
    throw Failure(CKPT_ERR_INVALID, "the gradient has " + std::to_string(elements) + " elements, but the tensor \"" +
                                        entry->name +
                                        "\" is not float32 with as many; give the gradient of a float32 "
                                        "parameter with float32 moments");
  std::vector<bool>::reference is_updated = is_updated_[entries_.find(entry->name)->second];
  if (is_updated)
    throw Failure(CKPT_ERR_INVALID, "the tensor \"" + entry->name +
                                        "\" was given for two gradients of one update; give each parameter's gradient "
                                        "once between two snapshots");
  is_updated = true;
  return entry->offset_bytes;
}

// Neighbouring parameters usually have the same factors.
std::uint32_t GradientCapture::step_of(const ckpt_gradient_t& gradient) {
  const kernels::AdamStep step = adam_step_of(gradient);
  for (std::size_t i = 0; i < record_.steps.size(); ++i)
    if (is_same(record_.steps[i], step)) return static_cast<std::uint32_t>(i);
  record_.steps.push_back(step);
  return static_cast<std::uint32_t>(record_.steps.size() - 1);
}

// Null if all gradients together would take more than `most_bytes`. Grows the memory to its final size at once.
std::byte* GradientCapture::stage(std::size_t size_bytes, std::size_t most_bytes) {
  if (staged_bytes_ + size_bytes > most_bytes) return nullptr;
  if (staged_bytes_ + size_bytes > staged_capacity_bytes_) {
    const std::size_t capacity = std::min(most_bytes, 2 * (staged_bytes_ + size_bytes));
    auto larger = std::make_unique_for_overwrite<std::byte[]>(capacity);
    if (staged_bytes_ != 0) std::memcpy(larger.get(), staged_.get(), staged_bytes_);
    staged_ = std::move(larger);
    staged_capacity_bytes_ = capacity;
  }
  std::byte* const place = staged_.get() + staged_bytes_;
  staged_bytes_ += size_bytes;
  return place;
}

std::string GradientCapture::add(const ckpt_gradient_t& gradient, const RankState& state) try {
  if (state.captured.size() != 2 || state.captured.front().length_bytes() != state.main.length_bytes())
    return give_up(
        "this rank's main shard is also that of other ranks, so nodes fetch its parts in full; give each rank a main "
        "shard of its own (option shard) to have updates repeated");
  if (gradient.data == nullptr && gradient.elements != 0)
    throw Failure(CKPT_ERR_INVALID, "a gradient has elements but a null pointer; give the address of its data");
  if (gradient.dtype != CKPT_F32 && gradient.dtype != CKPT_BF16)
    return give_up("gradients are neither float32 nor bfloat16, so nodes fetch checkpoints in full");
  Given given;
  arena::GradientRecord::Updated& updated = given.updated;
  updated.elements = gradient.elements;
  updated.is_bfloat16 = gradient.dtype == CKPT_BF16;
  updated.parameter_at = place_of(gradient.parameter, gradient.elements, state);
  updated.first_moment_at = place_of(gradient.first_moment, gradient.elements, state);
  updated.second_moment_at = place_of(gradient.second_moment, gradient.elements, state);
  if (gradient.largest_second_moment != nullptr)
    updated.largest_second_moment_at = place_of(gradient.largest_second_moment, gradient.elements, state);
  updated.step = step_of(gradient);
  const std::size_t bytes = gradient.elements * (updated.is_bfloat16 ? 2 : 4);
  given.size_bytes = whole_floats(bytes);
  given.staged_at = staged_bytes_;
  std::byte* const place = stage(given.size_bytes, arena::record_bytes_max(state.main.length_bytes()));
  if (place == nullptr)
    return give_up("gradients take more than half of the state, so nodes fetch checkpoints in full");
  if (given.size_bytes != bytes) std::memset(place + bytes, 0, given.size_bytes - bytes);
  if (bytes != 0) std::memcpy(place, gradient.data, bytes);
  record_.torch_version =
      std::string(gradient.torch_version == nullptr ? "" : gradient.torch_version).substr(0, torch_version_bytes_max);
  given_.push_back(given);
  return {};
} catch (...) {
  updating(std::nullopt);
  throw;
}

// Tensors that lie side by side become one range.
void GradientCapture::copy_the_rest(const RankState& state) {
  const auto& entries = state.main.layout.entries;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (is_updated_[i] || entries[i].size_bytes == 0) continue;
    auto& copied = record_.copied;
    if (!copied.empty() && copied.back().piece_at + copied.back().size_bytes == entries[i].offset_bytes)
      copied.back().size_bytes += entries[i].size_bytes;
    else
      copied.push_back({entries[i].offset_bytes, 0, entries[i].size_bytes});
  }
}

const device::Plan* GradientCapture::record(CheckpointId checkpoint, const RankState& state) {
  const auto base = base_;
  is_too_long_ = false;
  const bool is_same_layout = layout_hash_ == state.main.layout_hash && is_updated_.size() == entries_.size();
  if (!base || given_.empty() || !is_same_layout || base->incarnation() != checkpoint.incarnation()) return nullptr;
  record_.base = *base;
  record_.checkpoint = checkpoint;
  record_.piece_bytes = state.main.length_bytes();
  record_.layout_hash = state.main.layout_hash;
  record_.updated.clear();
  record_.copied.clear();
  for (const Given& given : given_) record_.updated.push_back(given.updated);
  copy_the_rest(state);
  std::uint64_t at = arena::description_bytes(record_);
  std::vector<device::Plan::Region> regions(1);
  for (std::size_t i = 0; i < given_.size(); ++i) {
    record_.updated[i].gradient_at = at;
    regions.push_back({staged_.get() + given_[i].staged_at, given_[i].size_bytes});
    at += given_[i].size_bytes;
  }
  for (auto& copied : record_.copied) {
    copied.record_at = at;
    at += copied.size_bytes;
  }
  const auto& targets = state.main.plan.targets();
  for (std::size_t i = 0; i < targets.size(); ++i)
    if (!is_updated_[i] && targets[i].size_bytes != 0) regions.push_back({targets[i].data, targets[i].size_bytes});
  is_too_long_ = at > arena::record_bytes_max(record_.piece_bytes);
  if (is_too_long_) return nullptr;
  description_ = arena::encode(record_);
  regions.front() = {description_.data(), description_.size()};
  plan_ = device::Plan(regions);
  return &plan_;
}

}  // namespace ckpt::client
