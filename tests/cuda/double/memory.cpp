#include "memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace cuda_double {
namespace {

constexpr std::size_t granularity_bytes = 512;

std::size_t rounded(std::size_t size_bytes) {
  return (size_bytes + granularity_bytes - 1) / granularity_bytes * granularity_bytes;
}

// All of it, as the kernel lists what is mapped: by address, what lies side by side in lines of their own.
bool is_writable(std::uintptr_t first, std::size_t size_bytes) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(std::fopen("/proc/self/maps", "re"), &std::fclose);
  std::uintptr_t at = first;
  char line[512];
  while (maps && at < first + size_bytes && std::fgets(line, sizeof(line), maps.get()) != nullptr) {
    std::uintptr_t begin = 0, end = 0;
    char writable = '-';
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*c%c", &begin, &end, &writable) != 3) continue;
    if (begin <= at && at < end && writable == 'w') at = end;
  }
  return at >= first + size_bytes;
}

}  // namespace

Memory::Memory() {
  void* both = ::mmap(nullptr, 2 * window_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (both == MAP_FAILED) std::abort();
  window_ = reinterpret_cast<std::uintptr_t>(both);
  if (::mprotect(static_cast<std::byte*>(both) + window_bytes, window_bytes, PROT_READ | PROT_WRITE) != 0) std::abort();
}

// First fit.
CUresult Memory::allocate(CUdeviceptr* pointer, std::size_t size_bytes) {
  if (pointer == nullptr || size_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex_);
  const std::size_t needed = rounded(size_bytes);
  if (needed > free_bytes_) return CUDA_ERROR_OUT_OF_MEMORY;
  std::uintptr_t at = window_;
  for (const auto& [first, size] : allocations_) {
    if (first - at >= needed) break;
    at = first + rounded(size);
  }
  if (at + needed > window_ + window_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  allocations_.emplace(at, size_bytes);
  free_bytes_ -= needed;
  *pointer = at;
  return CUDA_SUCCESS;
}

CUresult Memory::free(CUdeviceptr pointer) {
  if (pointer == 0) return CUDA_SUCCESS;
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(pointer);
  if (found == allocations_.end()) return CUDA_ERROR_INVALID_VALUE;
  std::memset(bytes_at(reinterpret_cast<void*>(pointer)), poison, found->second);
  free_bytes_ += rounded(found->second);
  allocations_.erase(found);
  return CUDA_SUCCESS;
}

bool Memory::on_device(CUdeviceptr pointer) const { return pointer >= window_ && pointer < window_ + window_bytes; }

bool Memory::within(const Ranges& ranges, std::uintptr_t first, std::size_t size_bytes) {
  auto next = ranges.upper_bound(first);
  if (next == ranges.begin()) return false;
  const auto& [begin, size] = *--next;
  return first - begin <= size && size_bytes <= size - (first - begin);
}

bool Memory::allocated(CUdeviceptr pointer, std::size_t size_bytes) const {
  const std::lock_guard lock(mutex_);
  return within(allocations_, pointer, size_bytes);
}

void* Memory::bytes_at(const void* address) const {
  const auto pointer = reinterpret_cast<std::uintptr_t>(address);
  return reinterpret_cast<void*>(on_device(pointer) ? pointer + window_bytes : pointer);
}

CUresult Memory::allocate_host(void** data, std::size_t size_bytes) {
  if (data == nullptr || size_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  *data = std::aligned_alloc(4096, (size_bytes + 4095) / 4096 * 4096);
  if (*data == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard lock(mutex_);
  host_allocations_.emplace(reinterpret_cast<std::uintptr_t>(*data), size_bytes);
  return CUDA_SUCCESS;
}

CUresult Memory::free_host(void* data) {
  {
    const std::lock_guard lock(mutex_);
    if (host_allocations_.erase(reinterpret_cast<std::uintptr_t>(data)) == 0) return CUDA_ERROR_INVALID_VALUE;
  }
  std::free(data);
  return CUDA_SUCCESS;
}

CUresult Memory::register_host(void* data, std::size_t size_bytes) {
  if (data == nullptr || size_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  std::unique_lock lock(mutex_);
  registrations_changed_.wait(lock, [this] { return !holds_registrations_ || let_registrations_ > 0; });
  if (let_registrations_ > 0) --let_registrations_;
  if (refusal_ != CUDA_SUCCESS) {
    ++refused_;
    return refusal_;
  }
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  if (!is_writable(first, size_bytes)) return CUDA_ERROR_INVALID_VALUE;  // as cards do that are not integrated
  if (touches(registrations_, first, size_bytes) || touches(host_allocations_, first, size_bytes))
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  registrations_.emplace(first, size_bytes);
  ++registered_;
  largest_registration_ = std::max<std::uint64_t>(largest_registration_, size_bytes);
  return CUDA_SUCCESS;
}

CUresult Memory::unregister_host(void* data) {
  const std::lock_guard lock(mutex_);
  const bool known = registrations_.erase(reinterpret_cast<std::uintptr_t>(data)) != 0;
  return known ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

bool Memory::touches(const Ranges& ranges, std::uintptr_t first, std::size_t size_bytes) {
  const auto next = ranges.lower_bound(first);
  return within(ranges, first, 1) || (next != ranges.end() && next->first - first < size_bytes);
}

bool Memory::pinned(const void* data, std::size_t size_bytes) const {
  const std::lock_guard lock(mutex_);
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  return within(registrations_, first, size_bytes) || within(host_allocations_, first, size_bytes);
}

bool Memory::copyable(const void* data, std::size_t size_bytes) const {
  if (pinned(data, size_bytes)) return true;
  const std::lock_guard lock(mutex_);
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  return !touches(registrations_, first, size_bytes) && !touches(host_allocations_, first, size_bytes);
}

void Memory::forget_all() {
  const std::lock_guard lock(mutex_);
  allocations_.clear();
  registrations_.clear();
}

void Memory::free_bytes(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  free_bytes_ = bytes;
}
void Memory::refuse_registration(CUresult result) {
  const std::lock_guard lock(mutex_);
  refusal_ = result;
}
std::uint64_t Memory::refused_registrations() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}
std::uint64_t Memory::registered() const {
  const std::lock_guard lock(mutex_);
  return registered_;
}
std::uint64_t Memory::largest_registration() const {
  const std::lock_guard lock(mutex_);
  return largest_registration_;
}
void Memory::hold_registrations(bool held) {
  const std::lock_guard lock(mutex_);
  holds_registrations_ = held;
  let_registrations_ = 0;
  registrations_changed_.notify_all();
}
void Memory::let_registrations(std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  let_registrations_ += count;
  registrations_changed_.notify_all();
}
std::uint64_t Memory::allocations() const {
  const std::lock_guard lock(mutex_);
  return allocations_.size();
}
std::uint64_t Memory::registrations() const {
  const std::lock_guard lock(mutex_);
  return registrations_.size();
}

}  // namespace cuda_double
