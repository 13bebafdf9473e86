#include "client/tensor_registry.hpp"

#include <cstring>

#include "base/error.hpp"

namespace ckpt::client {
namespace {

constexpr std::int32_t extents_max = 16;

// Whether an enumeration from the C ABI holds a value from 0 to `last`. Compares it as an integer, because a C++
// enumeration with another value must not even be read.
template <class Enum>
bool within(const Enum& value, Enum last) {
  static_assert(sizeof(Enum) == sizeof(unsigned));
  unsigned number = 0;
  std::memcpy(&number, &value, sizeof(number));
  return number <= static_cast<unsigned>(last);
}

[[noreturn]] void refuse(const std::string& sentence) { throw Failure(CKPT_ERR_INVALID, sentence); }

std::string checked_name(const char* name) {
  if (name == nullptr || !arena::is_tensor_name(name))
    refuse("a tensor's name must be 1 to 4096 bytes of UTF-8, and not __metadata__; register it under another name");
  return name;
}

void check_memory(const std::string& label, const void* data, std::uint64_t size_bytes) {
  if (data == nullptr && size_bytes != 0)
    refuse(label + " has " + std::to_string(size_bytes) + " bytes but a null pointer; give the address of its data");
}

void check_reach(const std::string& label, ckpt_memory memory, const void* data, device::Device& device) {
  if (data == nullptr) return;
  try {
    device.reach(memory, data);
  } catch (const Failure& failure) {
    throw Failure(failure.status(), label + " " + failure.what());
  }
}

}  // namespace

void TensorRegistry::add(const ckpt_tensor& tensor, device::Device& device) {
  const std::string name = checked_name(tensor.name);
  const std::string label = "tensor \"" + name + "\"";
  if (tensors_.contains(name))
    refuse(label + " is registered already; unregister it first, or move it to its new address");
  if (!within(tensor.dtype, CKPT_C64)) refuse(label + " has an unknown dtype; use one of ckpt_dtype");
  if (!within(tensor.memory, CKPT_DEVICE)) refuse(label + " has an unknown kind of memory; use one of ckpt_memory");
  if (!within(tensor.capture, CKPT_SYNCHRONOUS))
    refuse(label + " has an unknown kind of capture; use one of ckpt_capture");
  if (tensor.ndim < 0 || tensor.ndim > extents_max || (tensor.ndim > 0 && tensor.shape == nullptr))
    refuse(label + " needs a shape of 0 to 16 extents; correct ndim and shape");

  Tensor added{{name, tensor.dtype, {}, 0, 0}, static_cast<std::byte*>(tensor.data), tensor.memory, tensor.capture};
  if (tensor.ndim > 0) added.entry.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  const auto size_bytes = arena::tensor_bytes(tensor.dtype, added.entry.shape);
  if (!size_bytes)
    refuse(label + " has an impossible shape: an extent is negative, or the tensor is too large; correct its shape");
  check_memory(label, tensor.data, *size_bytes);
  check_reach(label, tensor.memory, tensor.data, device);
  added.entry.size_bytes = *size_bytes;
  gpu_tensors_ += tensor.memory == CKPT_DEVICE;
  tensors_.emplace(name, std::move(added));
  layout_changed_ = memory_changed_ = true;
}

TensorRegistry::Tensors::iterator TensorRegistry::find(const std::string& name) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) refuse("tensor \"" + name + "\" is not registered; register it first");
  return found;
}

void TensorRegistry::move(const std::string& name, void* data, device::Device& device) {
  Tensor& tensor = find(name)->second;
  check_memory("tensor \"" + name + "\"", data, tensor.entry.size_bytes);
  if (tensor.data == data) return;
  check_reach("tensor \"" + name + "\"", tensor.memory, data, device);
  tensor.data = static_cast<std::byte*>(data);
  memory_changed_ = true;
}

void TensorRegistry::remove(const std::string& name) {
  const auto found = find(name);
  gpu_tensors_ -= found->second.memory == CKPT_DEVICE;
  tensors_.erase(found);
  layout_changed_ = memory_changed_ = true;
}

void TensorRegistry::lay_out(ShardState& shard, ckpt_capture capture) const {
  std::vector<arena::LayoutEntry> entries;
  for (const auto& [name, tensor] : tensors_)
    if (tensor.capture == capture) entries.push_back(tensor.entry);
  shard.layout = arena::pack(std::move(entries));
  shard.layout_text = arena::layout_text(shard.layout);
  shard.layout_hash = arena::layout_hash(shard.layout_text);
}

device::Plan::Region TensorRegistry::region_of(const Tensor& tensor) {
  return {tensor.data, tensor.entry.size_bytes, tensor.memory};
}

void TensorRegistry::plan(ShardState& shard) const {
  std::vector<device::Plan::Region> regions;
  regions.reserve(shard.layout.entries.size());
  for (const arena::LayoutEntry& entry : shard.layout.entries)
    regions.push_back(region_of(tensors_.find(entry.name)->second));
  shard.plan = device::Plan(regions);
}

void TensorRegistry::plan_captures() {
  state_.captured.clear();
  for (const std::string& name : core::parts_of(main_shard_, share_)) {
    const auto range = arena::range_of(core::parse_part(name), state_.main.length_bytes());
    state_.captured.push_back({name, &state_.main, state_.main.plan.slice(range.first_byte, range.size_bytes)});
  }
  state_.captured.push_back({private_shard_, &state_.private_, state_.private_.plan});
}

void TensorRegistry::share(const core::Share& share) {
  share_ = share;
  memory_changed_ = true;
}

const RankState& TensorRegistry::state() {
  if (layout_changed_) {
    lay_out(state_.main, CKPT_OVERLAPPED);
    lay_out(state_.private_, CKPT_SYNCHRONOUS);
    layout_changed_ = false;
  }
  if (memory_changed_) {
    plan(state_.main);
    plan(state_.private_);
    plan_captures();
    memory_changed_ = false;
  }
  return state_;
}

}  // namespace ckpt::client
