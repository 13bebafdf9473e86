// Classes that own objects of the CUDA driver: contexts, streams, events, memory. Constructors throw Failure
// (CKPT_ERR_SYSTEM). Destructors never fail: if the context has died, it has released everything already. All except
// Context need a ContextScope around them, also for their destructors.
//
// Functions wait for the GPU only if their comments say so. None enqueues anything on a default stream.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "device/cuda_driver.hpp"

namespace ckpt::device {

// Keeps the primary context of a GPU alive.
class Context {
 public:
  explicit Context(int ordinal) {
    CKPT_CUDA(cuDeviceGet, &device_, ordinal);
    CKPT_CUDA(cuDevicePrimaryCtxRetain, &context_, device_);
  }
  ~Context() { cuda_driver().cuDevicePrimaryCtxRelease_v2(device_); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  CUcontext get() const { return context_; }
  CUdevice device() const { return device_; }

 private:
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
};

// Makes a context current on the calling thread. Also sets the thread's mode in which its driver calls do not disturb a
// graph capture that any thread has begun: in the default mode, cuEventQuery() would break the capture. The destructor
// restores the previous context and mode.
class ContextScope {
 public:
  explicit ContextScope(const Context& context)
      : pushed_(cuda_driver().cuCtxPushCurrent_v2(context.get()) == CUDA_SUCCESS) {
    exchange_mode();
  }
  ~ContextScope() {
    exchange_mode();
    CUcontext popped = nullptr;
    if (pushed_) cuda_driver().cuCtxPopCurrent_v2(&popped);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  void exchange_mode() {
    if (pushed_) cuda_driver().cuThreadExchangeStreamCaptureMode(&mode_);
  }

  const bool pushed_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // once it is set: the thread's previous mode
};

// True if work that is now enqueued on the stream would go into a graph, or if the driver cannot tell. Needs a current
// context.
inline bool is_captured(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return cuda_driver().cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

class Event {
 public:
  enum class Time { without, with };
  explicit Event(Time time = Time::without) {
    CKPT_CUDA(cuEventCreate, &event_, time == Time::with ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING);
  }
  ~Event() {
    if (event_ != nullptr) cuda_driver().cuEventDestroy_v2(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }

  void record(CUstream stream) const { CKPT_CUDA(cuEventRecord, event_, stream); }
  void hold_back(CUstream stream) const { CKPT_CUDA(cuStreamWaitEvent, stream, event_, 0); }
  // True if the GPU has finished the work that was enqueued before the event. True for an event that was never
  // recorded.
  bool reached() const {
    const CUresult result = cuda_driver().cuEventQuery(event_);
    if (result == CUDA_ERROR_NOT_READY) return false;
    check_cuda("cuEventQuery", result);
    return true;
  }
  // The milliseconds from this event to `other`. The GPU must have reached both, and both must have a time.
  float ms_until(const Event& other) const {
    float ms = 0;
    CKPT_CUDA(cuEventElapsedTime, &ms, event_, other.event_);
    return ms;
  }

 private:
  CUevent event_ = nullptr;
};

// A stream of our own, which does not wait for the default streams. Its kernels, NCCL's too, have the lowest priority,
// which is also CUDA's default. So the GPU first begins kernels of streams with a higher priority. It interrupts no
// running kernel. Copies to and from the host have no priority.
class BackgroundStream {
 public:
  BackgroundStream() {
    int lowest = 0, highest = 0;
    CKPT_CUDA(cuCtxGetStreamPriorityRange, &lowest, &highest);
    CKPT_CUDA(cuStreamCreateWithPriority, &stream_, CU_STREAM_NON_BLOCKING, lowest);
  }
  ~BackgroundStream() { cuda_driver().cuStreamDestroy_v2(stream_); }
  BackgroundStream(const BackgroundStream&) = delete;
  BackgroundStream& operator=(const BackgroundStream&) = delete;

  operator CUstream() const { return stream_; }  // NOLINT: it is one

 private:
  CUstream stream_ = nullptr;
};

// Device memory. Freeing it waits for the whole device.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(std::size_t size_bytes) : size_bytes_(size_bytes) {
    if (size_bytes != 0) CKPT_CUDA(cuMemAlloc_v2, &pointer_, size_bytes);
  }
  // Takes over memory that was allocated with the driver.
  static DeviceMemory of(CUdeviceptr pointer, std::size_t size_bytes) {
    DeviceMemory memory;
    memory.pointer_ = pointer;
    memory.size_bytes_ = size_bytes;
    return memory;
  }
  ~DeviceMemory() {
    if (pointer_ != 0) cuda_driver().cuMemFree_v2(pointer_);
  }
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    swap(other);
    return *this;
  }

  CUdeviceptr pointer() const { return pointer_; }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  void swap(DeviceMemory& other) {
    std::swap(pointer_, other.pointer_);
    std::swap(size_bytes_, other.size_bytes_);
  }
  CUdeviceptr pointer_ = 0;
  std::size_t size_bytes_ = 0;
};

// Host memory that the GPU sees at the same address. The object allocates it.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(std::size_t size_bytes) : size_bytes_(size_bytes) {
    if (size_bytes != 0) CKPT_CUDA(cuMemHostAlloc, &data_, size_bytes, CU_MEMHOSTALLOC_PORTABLE);
  }
  ~PinnedMemory() {
    if (data_ != nullptr) cuda_driver().cuMemFreeHost(data_);
  }
  PinnedMemory(PinnedMemory&& other) noexcept { swap(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    swap(other);
    return *this;
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  void swap(PinnedMemory& other) {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
  }
  void* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

// Memory that larger memory has replaced. Freeing it waits for the whole device.
struct RetiredMemory {
  std::vector<DeviceMemory> device;
  std::vector<PinnedMemory> pinned;

  bool empty() const { return device.empty() && pinned.empty(); }
  void add(DeviceMemory memory) {
    if (memory.size_bytes() != 0) device.push_back(std::move(memory));
  }
  void add(PinnedMemory memory) {
    if (memory.size_bytes() != 0) pinned.push_back(std::move(memory));
  }
};

// Pins host memory that somebody else owns, so that the GPU can use it. The memory must stay mapped until this object
// is gone.
class Registration {
 public:
  Registration(void* data, std::size_t size_bytes, unsigned flags) : data_(data) {
    CKPT_CUDA(cuMemHostRegister_v2, data, size_bytes, flags);
  }
  ~Registration() {
    if (data_ != nullptr) cuda_driver().cuMemHostUnregister(data_);
  }
  Registration(Registration&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  Registration& operator=(Registration&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }

  CUdeviceptr on_device() const {
    CUdeviceptr pointer = 0;
    CKPT_CUDA(cuMemHostGetDevicePointer_v2, &pointer, data_, 0);
    return pointer;
  }

 private:
  void* data_;
};

}  // namespace ckpt::device
