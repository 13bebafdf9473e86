#include "client/gradient_capture.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.hpp"

namespace ckpt::client {
namespace {

constexpr std::size_t torch_version_bytes_max = 128;

bool is_on_gpu(const ckpt_gradient_t& gradient) { return gradient.memory == CKPT_DEVICE; }

kernels::TorchVariant variant_of(const ckpt_gradient_t& gradient) {
  const auto on_cpu = gradient.cpu_has_fma != 0 ? kernels::TorchCapability::avx2 : kernels::TorchCapability::standard;
  return {gradient.is_unfused != 0 ? kernels::TorchForm::unfused : kernels::TorchForm::fused,
          is_on_gpu(gradient) ? kernels::TorchCapability::cuda : on_cpu};
}

// Returns why the step cannot be repeated, or "".
std::string why_not_repeatable(const ckpt_gradient_t& gradient) {
  if (gradient.dtype != CKPT_F32 && gradient.dtype != CKPT_BF16)
    return "gradients are neither float32 nor bfloat16, so nodes fetch checkpoints in full";
  if (gradient.optimizer != CKPT_ADAM && gradient.optimizer != CKPT_SGD)
    return "the optimizer is neither Adam nor SGD, so nodes fetch checkpoints in full";
  if (gradient.optimizer == CKPT_SGD) return {};
  const bool is_fused = gradient.is_unfused == 0;
  if (!is_on_gpu(gradient) && !is_fused)
    return "without fused=True, the bits of a parameter depend on the processor; give Adam fused=True";
  if (is_on_gpu(gradient) && is_fused && gradient.weight_decay != 0 && gradient.decoupled_weight_decay == 0)
    return "on a GPU, fused Adam does not round weight decay alike in all elements; use AdamW, or give Adam "
           "foreach=True";
  if (gradient.step_count != nullptr && !(is_on_gpu(gradient) && is_fused))
    return "only a fused Adam on a GPU is repeated with a number of steps that is there; give `step`";
  return {};
}

kernels::AdamSettings adam_settings_of(const ckpt_gradient_t& gradient) {
  return {.learning_rate = gradient.learning_rate,
          .beta1 = gradient.beta1,
          .beta2 = gradient.beta2,
          .epsilon = gradient.epsilon,
          .weight_decay = gradient.weight_decay,
          .decoupled_weight_decay = gradient.decoupled_weight_decay != 0,
          .amsgrad = gradient.largest_second_moment != nullptr,
          .maximize = gradient.maximize != 0};
}

arena::GradientRecord::Step step_of(const ckpt_gradient_t& gradient) {
  const kernels::TorchVariant variant = variant_of(gradient);
  if (gradient.optimizer == CKPT_SGD)
    return kernels::sgd_step({.learning_rate = gradient.learning_rate,
                              .momentum = gradient.momentum,
                              .dampening = gradient.dampening,
                              .weight_decay = gradient.weight_decay,
                              .nesterov = gradient.nesterov != 0,
                              .maximize = gradient.maximize != 0},
                             false, variant);
  const kernels::AdamSettings settings = adam_settings_of(gradient);
  if (gradient.step_count != nullptr) return arena::GradientRecord::CountedStep{settings};
  return kernels::adam_step(settings, gradient.step, variant);
}

}  // namespace

void GradientCapture::updating(std::optional<CheckpointId> base) {
  base_ = base;
  given_.clear();
  record_ = {};
  memory_.clear();
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

// The number of the step. The record has it, because the step does not compute it.
std::uint64_t GradientCapture::count_of(const char* name, const RankState& state) {
  const arena::LayoutEntry* entry = find(name, state);
  if (entry->dtype != CKPT_F32 || entry->size_bytes != sizeof(float))
    throw Failure(CKPT_ERR_INVALID,
                  "the tensor \"" + entry->name +
                      "\" is given as the number of steps, but is not one float32; give state[\"step\"]");
  return entry->offset_bytes;
}

// Neighbouring parameters usually have the same factors.
std::uint32_t GradientCapture::number_of(const arena::GradientRecord::Step& step) {
  const auto found = std::find(record_.steps.rbegin(), record_.steps.rend(), step);
  if (found != record_.steps.rend()) return static_cast<std::uint32_t>(record_.steps.rend() - found - 1);
  record_.steps.push_back(step);
  return static_cast<std::uint32_t>(record_.steps.size() - 1);
}

device::Plan::Region GradientCapture::checked(const ckpt_gradient_t& gradient) const {
  if (gradient.data == nullptr && gradient.elements != 0)
    throw Failure(CKPT_ERR_INVALID, "a gradient has elements but a null pointer; give the address of its data");
  const device::Plan::Region region{static_cast<std::byte*>(const_cast<void*>(gradient.data)),
                                    gradient.elements * (gradient.dtype == CKPT_BF16 ? 2 : 4), gradient.memory};
  if (!is_on_gpu(gradient)) return region;
  device_.check_streams("add_gradient()", {&gradient.stream, 1});
  try {
    if (gradient.elements != 0) device_.reach(CKPT_DEVICE, gradient.data);
  } catch (const Failure& failure) {
    throw Failure(failure.status(), std::string("a gradient ") + failure.what());
  }
  return region;
}

std::string GradientCapture::add(const ckpt_gradient_t& gradient, const RankState& state) try {
  if (state.captured.size() != 2 || state.captured.front().length_bytes() != state.main.length_bytes())
    return give_up(
        "this rank's main shard is also that of other ranks, so nodes fetch its parts in full; give each rank a main "
        "shard of its own (option shard) to have updates repeated");
  if (std::string why = why_not_repeatable(gradient); !why.empty()) return give_up(std::move(why));
  const device::Plan::Region region = checked(gradient);
  Given given;
  arena::GradientRecord::Updated& updated = given.updated;
  updated.elements = gradient.elements;
  updated.is_bfloat16 = gradient.dtype == CKPT_BF16;
  updated.parameter_at = place_of(gradient.parameter, gradient.elements, state);
  if (gradient.optimizer == CKPT_ADAM || gradient.momentum != 0)
    updated.first_moment_at = place_of(gradient.first_moment, gradient.elements, state);
  if (gradient.optimizer == CKPT_ADAM) {
    updated.second_moment_at = place_of(gradient.second_moment, gradient.elements, state);
    if (gradient.largest_second_moment != nullptr)
      updated.largest_second_moment_at = place_of(gradient.largest_second_moment, gradient.elements, state);
    if (gradient.step_count != nullptr) updated.count_at = count_of(gradient.step_count, state);
  }
  updated.step = number_of(step_of(gradient));
  try {
    given.copy = memory_.keep(region, gradient.stream, arena::record_bytes_max(state.main.length_bytes()));
  } catch (const Failure& failure) {
    return give_up(std::string("the GPU did not copy the gradients: ") + failure.what());
  }
  if (given.copy.data == nullptr)
    return give_up("gradients take more than half of the state, so nodes fetch checkpoints in full");
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
    regions.push_back(given_[i].copy);
    at += given_[i].copy.size_bytes;
  }
  for (auto& copied : record_.copied) {
    copied.record_at = at;
    at += copied.size_bytes;
  }
  const auto& targets = state.main.plan.targets();
  for (std::size_t i = 0; i < targets.size(); ++i)
    if (!is_updated_[i] && targets[i].size_bytes != 0)
      regions.push_back({targets[i].data, targets[i].size_bytes, state.main.plan.memories()[i]});
  is_too_long_ = at > arena::record_bytes_max(record_.piece_bytes);
  if (is_too_long_) return nullptr;
  description_ = arena::encode(record_);
  regions.front() = {description_.data(), description_.size()};
  plan_ = device::Plan(regions);
  return &plan_;
}

}  // namespace ckpt::client
