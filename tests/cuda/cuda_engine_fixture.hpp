// For tests of the engine with tensors in device memory, before a fake agent.
#pragma once

#include <optional>

#include "../client/engine_fixture.hpp"
#include "device/auto_device.hpp"
#include "gpu.hpp"

namespace ckpt::client {

using namespace testing_support;

inline constexpr std::size_t main_bytes = 3'000'017;
inline constexpr std::uint64_t staging_bytes = 1 << 20;
inline constexpr std::uint64_t staging_for_all_bytes = 8 << 20;

class CudaEngineTest : public EngineTest {
 protected:
  void SetUp() override {
    if (buttons().reset != nullptr) buttons().reset();
    if (cuInit(0) != CUDA_SUCCESS) GTEST_SKIP() << "no GPU";
    ASSERT_CUDA(cuDeviceGet(&device_, 0));
    ASSERT_CUDA(cuDevicePrimaryCtxRetain(&context_, device_));
    ASSERT_CUDA(cuCtxSetCurrent(context_));
    weights_.emplace(main_bytes);
    statistics_.emplace(1000);
    stream_.emplace();
  }
  void TearDown() override {
    if (buttons().reset != nullptr) buttons().reset();
    if (context_ == nullptr) return;
    stream_.reset();
    weights_.reset();
    statistics_.reset();
    cuCtxSetCurrent(nullptr);
    cuDevicePrimaryCtxRelease(device_);
  }

  std::unique_ptr<Engine> started(std::uint64_t staging = staging_bytes) {
    auto made = engine<device::AutoDevice>({}, 1u, staging);
    add(*made, "weights", *weights_, CKPT_OVERLAPPED);
    add(*made, "statistics", *statistics_, CKPT_SYNCHRONOUS);
    return made;
  }
  static std::string add(Engine& engine, const char* name, const GpuBytes& memory, ckpt_capture capture) {
    const auto size = static_cast<std::int64_t>(memory.size_bytes());
    WarningLog warnings(engine);
    engine.register_tensor({sizeof(ckpt_tensor), name, memory.data(), &size, 1, CKPT_U8, CKPT_DEVICE, capture});
    engine.on_warning(nullptr, nullptr);
    return warnings.take(CKPT_WARNING_GPU_MEMORY);
  }
  Outcome snapshot(Engine& engine, std::int64_t iteration) { return engine.snapshot(iteration, stream()); }
  Outcome before_update(Engine& engine) {
    const device::Stream stream = this->stream();
    return engine.before_update({&stream, 1});
  }
  CUstream stream() const { return *stream_; }
  // Enqueued, as an optimizer's step is.
  void update(unsigned char value) { EXPECT_CUDA(cuMemsetD8Async(weights_->pointer(), value, main_bytes, stream())); }
  static bool captured(const Engine& engine, std::int64_t iteration) {
    return engine.wait(iteration, CKPT_STAGE_CAPTURED, 50'000).status == CKPT_OK;
  }
  bool is_stored(std::int64_t iteration) { return agent_->piece("rank0", CheckpointId(1, iteration)).has_value(); }

  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  std::optional<GpuBytes> weights_, statistics_;
  std::optional<GpuStream> stream_;
};

// The driver does what a test tells it to.
template <class Base>
class Held : public Base {
 protected:
  void SetUp() override {
    if (buttons().reset == nullptr) GTEST_SKIP() << "a real driver has no buttons";
    Base::SetUp();
  }
};
using HeldCudaEngineTest = Held<CudaEngineTest>;

}  // namespace ckpt::client
