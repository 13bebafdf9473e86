// Helpers for tests with a GPU. They are linked with the test double of the CUDA driver (double/). If LD_LIBRARY_PATH
// names the folder of a real driver, they use that.
#pragma once

#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "double/control.h"

namespace ckpt::testing_support {

// The functions that control the test double. With a real driver they are null.
struct Buttons {
  template <class Function>
  static Function* find(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
  }
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration
#define CKPT_BUTTON(name) decltype(&ckpt_double_##name) name = find<decltype(ckpt_double_##name)>("ckpt_double_" #name)
  CKPT_BUTTON(reset);
  CKPT_BUTTON(hold);
  CKPT_BUTTON(let);
  CKPT_BUTTON(hold_calls);
  CKPT_BUTTON(held_calls);
  CKPT_BUTTON(done);
  CKPT_BUTTON(bandwidth);
  CKPT_BUTTON(kill_context);
  CKPT_BUTTON(kill_context_at);
  CKPT_BUTTON(refuse_registration);
  CKPT_BUTTON(refused_registrations);
  CKPT_BUTTON(registered);
  CKPT_BUTTON(largest_registration);
  CKPT_BUTTON(hold_registrations);
  CKPT_BUTTON(let_registrations);
  CKPT_BUTTON(pageable_copies);
  CKPT_BUTTON(event_queries);
  CKPT_BUTTON(traffic_at);
  CKPT_BUTTON(refuse_stream_writes);
  CKPT_BUTTON(disturbed_captures);
  CKPT_BUTTON(free_bytes);
  CKPT_BUTTON(registrations);
  CKPT_BUTTON(registered_here);
  CKPT_BUTTON(freed_here);
  CKPT_BUTTON(allocations);
  CKPT_BUTTON(queue_depth);
  CKPT_BUTTON(queue_full);
  CKPT_BUTTON(driver_version);
  CKPT_BUTTON(numa_node);
#undef CKPT_BUTTON
};
inline const Buttons& buttons() {
  static const Buttons instance;
  return instance;
}

#define EXPECT_CUDA(call) EXPECT_EQ(call, CUDA_SUCCESS)
#define ASSERT_CUDA(call) ASSERT_EQ(call, CUDA_SUCCESS)

// Waits until `condition` holds. Returns false if it does not within 50 s.
template <class Condition>
bool eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(50);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// Makes the GPU's context current for a test, and resets the test double.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (buttons().reset != nullptr) buttons().reset();
    if (cuInit(0) != CUDA_SUCCESS) GTEST_SKIP() << "no GPU";
    ASSERT_CUDA(cuDeviceGet(&device_, 0));
    ASSERT_CUDA(cuDevicePrimaryCtxRetain(&context_, device_));
    ASSERT_CUDA(cuCtxSetCurrent(context_));
  }
  void TearDown() override {
    if (buttons().reset != nullptr) buttons().reset();
    if (context_ == nullptr) return;
    cuCtxSetCurrent(nullptr);
    cuDevicePrimaryCtxRelease(device_);
  }
  static bool has_buttons() { return buttons().reset != nullptr; }

  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
};

// Device memory that a test fills.
class GpuBytes {
 public:
  explicit GpuBytes(std::size_t size_bytes) : size_bytes_(size_bytes) {
    EXPECT_CUDA(cuMemAlloc(&pointer_, size_bytes));
  }
  explicit GpuBytes(const std::vector<std::byte>& bytes) : GpuBytes(bytes.size()) { write(bytes); }
  ~GpuBytes() { cuMemFree(pointer_); }
  GpuBytes(const GpuBytes&) = delete;
  GpuBytes& operator=(const GpuBytes&) = delete;

  CUdeviceptr pointer() const { return pointer_; }
  void* data() const { return reinterpret_cast<void*>(pointer_); }
  std::size_t size_bytes() const { return size_bytes_; }
  // On the legacy default stream; waits.
  void write(const std::vector<std::byte>& bytes) {
    EXPECT_CUDA(cuMemcpyHtoD(pointer_, bytes.data(), bytes.size()));
    EXPECT_CUDA(cuStreamSynchronize(nullptr));  // from pageable memory it may return when all is staged
  }
  std::vector<std::byte> read() const {
    std::vector<std::byte> bytes(size_bytes_);
    EXPECT_CUDA(cuMemcpyDtoH(bytes.data(), pointer_, size_bytes_));
    return bytes;
  }

 private:
  CUdeviceptr pointer_ = 0;
  std::size_t size_bytes_;
};

class GpuStream {
 public:
  explicit GpuStream(unsigned flags = CU_STREAM_NON_BLOCKING) { EXPECT_CUDA(cuStreamCreate(&stream_, flags)); }
  ~GpuStream() { cuStreamDestroy(stream_); }
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;
  operator CUstream() const { return stream_; }  // NOLINT

 private:
  CUstream stream_ = nullptr;
};

class GpuEvent {
 public:
  explicit GpuEvent(unsigned flags = CU_EVENT_DISABLE_TIMING) { EXPECT_CUDA(cuEventCreate(&event_, flags)); }
  ~GpuEvent() { cuEventDestroy(event_); }
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;
  operator CUevent() const { return event_; }  // NOLINT

 private:
  CUevent event_ = nullptr;
};

inline std::vector<std::byte> bytes_of(std::size_t size_bytes, std::uint64_t seed) {
  std::vector<std::byte> bytes(size_bytes);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (std::byte& byte : bytes) byte = static_cast<std::byte>((state = state * 6364136223846793005ull + 1) >> 56);
  return bytes;
}

}  // namespace ckpt::testing_support
