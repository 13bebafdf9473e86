// The memory of the test double of libcuda.so.1. Device memory is a window of addresses that host code cannot touch;
// the bytes are elsewhere. It also knows which ranges of host memory are registered.
//
// Thread-safe.
#pragma once

#include <cuda.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace cuda_double {

class Memory {
 public:
  static constexpr std::size_t window_bytes = std::size_t{4} << 30;
  static constexpr unsigned char poison = 0xDB;  // what freed device memory is filled with

  Memory();

  CUresult allocate(CUdeviceptr* pointer, std::size_t size_bytes);
  CUresult free(CUdeviceptr pointer);
  bool on_device(CUdeviceptr pointer) const;
  // Within one allocation that lives.
  bool allocated(CUdeviceptr pointer, std::size_t size_bytes) const;
  // Where the bytes are that device code sees at this address: for work of the device alone.
  void* bytes_at(const void* address) const;
  template <class T>
  T* bytes_at(T* address) const {
    return static_cast<T*>(bytes_at(static_cast<const void*>(address)));
  }

  // Host memory that the driver allocates: pinned, and no registration.
  CUresult allocate_host(void** data, std::size_t size_bytes);
  CUresult free_host(void* data);

  CUresult register_host(void* data, std::size_t size_bytes);
  CUresult unregister_host(void* data);
  // Within one registration, or memory of allocate_host().
  bool pinned(const void* data, std::size_t size_bytes) const;
  // False if the range touches pinned memory and is not pinned(): a driver refuses to copy there.
  bool copyable(const void* data, std::size_t size_bytes) const;

  // A context that died takes its allocations and registrations along.
  void forget_all();

  void free_bytes(std::uint64_t bytes);
  void refuse_registration(CUresult result);
  std::uint64_t refused_registrations() const;
  std::uint64_t registered() const;  // since the start
  std::uint64_t largest_registration() const;
  // Whether register_host() does not come back.
  void hold_registrations(bool held);
  void let_registrations(std::uint64_t count);
  std::uint64_t allocations() const;
  std::uint64_t registrations() const;

 private:
  using Ranges = std::map<std::uintptr_t, std::size_t>;  // by first address
  static bool within(const Ranges& ranges, std::uintptr_t first, std::size_t size_bytes);

  mutable std::mutex mutex_;
  std::uintptr_t window_ = 0;  // the bytes lie one window behind
  std::uint64_t free_bytes_ = window_bytes;
  CUresult refusal_ = CUDA_SUCCESS;
  std::uint64_t refused_ = 0, registered_ = 0, largest_registration_ = 0, let_registrations_ = 0;
  bool holds_registrations_ = false;
  std::condition_variable registrations_changed_;
  static bool touches(const Ranges& ranges, std::uintptr_t first, std::size_t size_bytes);
  Ranges allocations_, registrations_, host_allocations_;
};

}  // namespace cuda_double
