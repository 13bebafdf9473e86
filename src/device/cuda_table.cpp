#include "device/cuda_table.hpp"

#include <cstring>
#include <utility>

namespace ckpt::device {
namespace {

// Replaces the memory if it is too small, with room to grow.
template <class Memory>
void grow(Memory& memory, std::size_t needed_bytes, RetiredMemory& retired) {
  if (memory.size_bytes() >= needed_bytes) return;
  retired.add(std::exchange(memory, Memory(needed_bytes + needed_bytes / 4)));
}

constexpr std::size_t image_alignment_bytes = 16;

std::size_t image_room_bytes(std::size_t size_bytes) {
  return (size_bytes + image_alignment_bytes - 1) / image_alignment_bytes * image_alignment_bytes;
}

}  // namespace

void CudaTable::add(const Plan& plan, std::size_t direct_min_bytes) {
  first_entries_.push_back(entries_.size());
  for (std::size_t i = 0; i < plan.targets().size(); ++i) {
    const auto& [data, size_bytes] = plan.targets()[i];
    if (size_bytes == 0) continue;
    if (plan.memories()[i] == CKPT_HOST) {
      images_.push_back({data, size_bytes, image_bytes_});
      imaged_.push_back(entries_.size());
      image_bytes_ += image_room_bytes(size_bytes);
    }
    entries_.push_back(
        {reinterpret_cast<unsigned char*>(data), plan.offsets()[i], is_direct(plan, i, direct_min_bytes)});
  }
  entries_.push_back({nullptr, plan.length_bytes()});
}

void CudaTable::place_images(Images images, RetiredMemory& retired) {
  grow(image_memory_, image_bytes_, retired);
  for (std::size_t i = 0; i < images_.size(); ++i) {
    std::byte* const at = image_memory_.as<std::byte>() + images_[i].offset_bytes;
    if (images == Images::copied) std::memcpy(at, images_[i].tensor, images_[i].size_bytes);
    entries_[imaged_[i]].data = reinterpret_cast<unsigned char*>(at);
  }
}

void CudaTable::stage(RetiredMemory& retired) {
  const std::size_t size_bytes = entries_.size() * sizeof(entries_[0]);
  grow(staged_, size_bytes, retired);
  grow(on_device_, size_bytes, retired);
  if (size_bytes != 0) std::memcpy(staged_.as<std::byte>(), entries_.data(), size_bytes);
}

void CudaTable::assign(std::span<const Plan* const> plans, Images images, RetiredMemory& retired,
                       std::size_t direct_min_bytes) {
  entries_.clear();
  first_entries_.clear();
  images_.clear();
  imaged_.clear();
  image_bytes_ = 0;
  for (const Plan* plan : plans) add(*plan, direct_min_bytes);
  first_entries_.push_back(entries_.size());
  place_images(images, retired);
  stage(retired);
}

void CudaTable::reserve(std::span<const Plan* const> plans, RetiredMemory& retired) {
  std::size_t entries = plans.size(), images = 0, image_bytes = 0;
  for (const Plan* plan : plans) {
    entries += plan->targets().size();
    for (std::size_t i = 0; i < plan->targets().size(); ++i)
      if (plan->memories()[i] == CKPT_HOST) {
        ++images;
        image_bytes += image_room_bytes(plan->targets()[i].size_bytes);
      }
  }
  entries_.reserve(entries);
  first_entries_.reserve(plans.size() + 1);
  images_.reserve(images);
  imaged_.reserve(images);
  grow(image_memory_, image_bytes, retired);
  grow(staged_, entries * sizeof(entries_[0]), retired);
  grow(on_device_, entries * sizeof(entries_[0]), retired);
}

void CudaTable::upload(CUstream stream) const {
  const std::size_t size_bytes = entries_.size() * sizeof(entries_[0]);
  if (size_bytes != 0) CKPT_CUDA(cuMemcpyHtoDAsync_v2, on_device_.pointer(), staged_.as<void>(), size_bytes, stream);
}

kernels::device::SegmentsJob CudaTable::job(std::size_t plan, std::uint64_t first_byte, std::uint64_t length_bytes,
                                            CUdeviceptr packed, bool skips_direct) const {
  const auto* const segments = reinterpret_cast<const kernels::device::DeviceSegment*>(on_device_.pointer());
  const std::size_t first = first_entries_[plan], count = first_entries_[plan + 1] - first - 1;
  return {segments + first, count, first_byte, length_bytes, reinterpret_cast<unsigned char*>(packed), skips_direct};
}

void CudaTable::write_back() const {
  for (const Image& image : images_)
    std::memcpy(image.tensor, image_memory_.as<std::byte>() + image.offset_bytes, image.size_bytes);
}

}  // namespace ckpt::device
