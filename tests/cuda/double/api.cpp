// A test double of libcuda.so.1: one GPU that is made of host memory and threads, for tests alone. It behaves as the
// driver's documentation says wherever ckptengine depends on it; control.h makes rare days happen.

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "calls.hpp"
#include "captures.hpp"
#include "control.h"
#include "images.hpp"
#include "kernels.hpp"
#include "launch.hpp"
#include "memory.hpp"
#include "streams.hpp"
#include "traffic.hpp"

#ifndef CKPT_DOUBLE_VERSION
#define CKPT_DOUBLE_VERSION CUDA_VERSION
#elif CKPT_DOUBLE_VERSION < 12080
#undef cuEventElapsedTime  // there is no second version of it yet
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

// The handles' types are the driver's own.
struct CUctx_st {};
struct CUstream_st {};
struct CUevent_st : cuda_double::Event {
  bool has_time = false;
  cuda_double::RecordedIn recorded_in;
};
struct CUmod_st {
  const void* image;
};
struct CUfunc_st {
  std::string name;
  cuda_double::Kernel kernel;
};

namespace {

using cuda_double::Memory;
using cuda_double::Operation;
using cuda_double::Stream;
using cuda_double::Streams;

// The order is that of construction: streams end before the memory they work on.
struct Driver {
  bool initialized = false;
  CUctx_st primary;
  std::atomic<int> retained{0};
  std::atomic<std::uint64_t> bandwidth_bytes_per_s{0};
  std::atomic<int> version{0};
  std::atomic<int> numa_node{-1};
  std::atomic<int> stream_write_refusal{0};
  std::atomic<std::uint64_t> pageable_copies{0};  // to the device
  std::atomic<std::uint64_t> event_queries{0};
  cuda_double::Calls calls;
  cuda_double::Captures captures;
  Memory memory;
  cuda_double::Traffic traffic;
  std::mutex events_mutex;  // for the two below
  std::set<CUevent> events;
  std::set<CUmodule> modules;
  Streams streams;
};
Driver& driver() {
  static Driver* const instance = new Driver;  // never destroyed: others' destructors may still call
  return *instance;
}

thread_local std::vector<CUcontext> current;     // NOLINT
thread_local bool in_host_function = false;      // NOLINT
thread_local bool relaxed = false;               // NOLINT: about captures of graphs
thread_local std::uint64_t registered_here = 0;  // NOLINT
thread_local std::uint64_t freed_here = 0;       // NOLINT: and unregistered

// What every call that needs a context begins with.
CUresult ready() {
  if (in_host_function) return CUDA_ERROR_NOT_PERMITTED;
  if (!driver().initialized) return CUDA_ERROR_NOT_INITIALIZED;
  driver().calls.enter();
  if (const int death = driver().streams.death()) return static_cast<CUresult>(death);
  if (current.empty() || current.back() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return driver().retained > 0 ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

template <class Body>
CUresult with_context(Body body) {
  const CUresult result = ready();
  return result == CUDA_SUCCESS ? body() : result;
}

template <class Body>
CUresult on_stream(CUstream handle, Body body) {
  return with_context([&] {
    Stream* const stream = driver().streams.find(handle);
    return stream == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(*stream);
  });
}

template <class Body>
CUresult on_event(CUevent event, Body body) {
  return with_context([&] {
    {
      const std::lock_guard lock(driver().events_mutex);
      if (!driver().events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
    }
    return body(*event);
  });
}

bool is_legacy(const Stream& stream) { return &stream == driver().streams.find(nullptr); }

// Work that a capture takes instead, if one is under way there.
CUresult enqueue(Stream& stream, Operation operation) {
  if (const auto answer = driver().captures.work(stream, is_legacy(stream))) return *answer;
  driver().streams.enqueue(stream, std::move(operation));
  return CUDA_SUCCESS;
}

// Calls that may wait or allocate.
template <class Body>
CUresult unsafely(Body body) {
  return with_context([&] {
    if (const auto answer = driver().captures.call_unsafe(relaxed)) return *answer;
    return body();
  });
}

CUresult now_or_dead() { return static_cast<CUresult>(driver().streams.death()); }

// In slices, so that a copy that is slow is torn for a while.
void copy_slowly(void* to, const void* from, std::size_t size_bytes) {
  constexpr std::size_t slice_bytes = 256 << 10;
  const auto begun_at = std::chrono::steady_clock::now();
  for (std::size_t done = 0; done < size_bytes;) {
    const std::size_t bytes = std::min(slice_bytes, size_bytes - done);
    std::memcpy(static_cast<std::byte*>(to) + done, static_cast<const std::byte*>(from) + done, bytes);
    done += bytes;
    if (const std::uint64_t bandwidth = driver().bandwidth_bytes_per_s)
      std::this_thread::sleep_until(begun_at + std::chrono::nanoseconds(done * 1'000'000'000ULL / bandwidth));
  }
}

// What the work of a copy is.
void copy(const char* name, void* to, const void* from, std::size_t size_bytes) {
  copy_slowly(driver().memory.bytes_at(to), driver().memory.bytes_at(from), size_bytes);
  driver().traffic.add(driver().memory, name, {{{from, size_bytes}}, {{to, size_bytes}}});
}

bool is_pinned(const void* data, std::size_t size_bytes) { return driver().memory.pinned(data, size_bytes); }

}  // namespace

// ---- Driver, device, context ----

EXPORT CUresult cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  driver().initialized = true;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int* version) {
  *version = driver().version != 0 ? driver().version.load() : CKPT_DOUBLE_VERSION;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char** text) {
  static const std::map<CUresult, const char*> names = {
      {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
      {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED"},
      {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
      {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
      {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
  };
  const auto found = names.find(error);
  *text = found == names.end() ? "CUDA_ERROR_UNKNOWN" : found->second;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "as the test double was told";
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (!driver().initialized) return CUDA_ERROR_NOT_INITIALIZED;
  if (ordinal != 0) return CUDA_ERROR_INVALID_DEVICE;
  *device = 0;
  return CUDA_SUCCESS;
}

// Of all attributes, the double knows the closest NUMA node (CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID), and only if it is new.
EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  if (!driver().initialized) return CUDA_ERROR_NOT_INITIALIZED;
  if (attribute != 134 || CKPT_DOUBLE_VERSION < 13000) return CUDA_ERROR_INVALID_VALUE;
  *value = driver().numa_node;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int* count) {
  if (!driver().initialized) return CUDA_ERROR_NOT_INITIALIZED;
  *count = 1;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char* name, int size_bytes, CUdevice device) {
  if (device != 0 || size_bytes <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::strncpy(name, "test double", static_cast<std::size_t>(size_bytes) - 1);
  name[size_bytes - 1] = 0;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (!driver().initialized) return CUDA_ERROR_NOT_INITIALIZED;
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  ++driver().retained;
  *context = &driver().primary;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  if (device != 0 || driver().retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --driver().retained;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent(CUcontext context) {
  if (in_host_function) return CUDA_ERROR_NOT_PERMITTED;
  if (context != &driver().primary) return CUDA_ERROR_INVALID_CONTEXT;
  driver().calls.enter();
  current.push_back(context);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent(CUcontext* context) {
  if (current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = current.back();
  current.pop_back();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current.empty() ? nullptr : current.back();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  if (context != nullptr && context != &driver().primary) return CUDA_ERROR_INVALID_CONTEXT;
  if (!current.empty()) current.pop_back();
  if (context != nullptr) current.push_back(context);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return with_context([&] {
    *least = 0;
    *greatest = -5;
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuCtxSynchronize(void) {
  return unsafely([] {
    driver().streams.synchronize_all();
    return now_or_dead();
  });
}

// ---- Streams and events ----

EXPORT CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int) {
  return with_context([&] {
    if ((flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0) return CUDA_ERROR_INVALID_VALUE;
    *stream = reinterpret_cast<CUstream>(driver().streams.create((flags & CU_STREAM_NON_BLOCKING) == 0));
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

EXPORT CUresult cuStreamDestroy(CUstream stream) {
  if (in_host_function) return CUDA_ERROR_NOT_PERMITTED;
  driver().calls.enter();
  Stream* const found = stream == nullptr ? nullptr : driver().streams.find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  driver().streams.destroy(found);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamQuery(CUstream handle) {
  return on_stream(handle, [](Stream& stream) {
    if (const auto answer = driver().captures.ask(stream, is_legacy(stream))) return *answer;
    if (const auto answer = driver().captures.call_unsafe(relaxed)) return *answer;
    return driver().streams.idle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

EXPORT CUresult cuStreamSynchronize(CUstream handle) {
  return on_stream(handle, [](Stream& stream) {
    if (const auto answer = driver().captures.ask(stream, is_legacy(stream))) return *answer;
    if (const auto answer = driver().captures.call_unsafe(relaxed)) return *answer;
    driver().streams.synchronize(stream);
    return now_or_dead();
  });
}

EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned) {
  return on_stream(handle, [&](Stream& stream) {
    return on_event(event, [&](CUevent_st& known) {
      if (const auto answer = driver().captures.wait(stream, is_legacy(stream), known.recorded_in)) return *answer;
      driver().streams.wait(stream, known);
      return CUDA_SUCCESS;
    });
  });
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return on_stream(handle, [&](Stream& stream) { return driver().captures.status(stream, is_legacy(stream), status); });
}

EXPORT CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  return on_stream(handle, [&](Stream& stream) {
    return is_legacy(stream) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : driver().captures.begin(stream, mode);
  });
}

EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  return on_stream(handle, [&](Stream& stream) { return driver().captures.end(stream, graph); });
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  thread_local CUstreamCaptureMode of_thread = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return with_context([&] {
    std::swap(*mode, of_thread);
    relaxed = of_thread == CU_STREAM_CAPTURE_MODE_RELAXED;
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuStreamWriteValue32(CUstream handle, CUdeviceptr address, cuuint32_t value, unsigned) {
  return on_stream(handle, [&](Stream& stream) {
    void* const word = reinterpret_cast<void*>(address);
    if (const int refusal = driver().stream_write_refusal) return static_cast<CUresult>(refusal);
    if (address % sizeof(value) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!driver().memory.allocated(address, sizeof(value)) && !is_pinned(word, sizeof(value)))
      return CUDA_ERROR_INVALID_VALUE;
    return enqueue(stream, {cuda_double::other_work,
                            [word, value] {
                              auto* const bytes = static_cast<std::uint32_t*>(driver().memory.bytes_at(word));
                              __atomic_store_n(bytes, value, __ATOMIC_RELEASE);
                            },
                            nullptr});
  });
}

EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  return on_stream(handle, [&](Stream& stream) {
    return enqueue(stream, {cuda_double::other_work,
                            [function, data] {
                              in_host_function = true;
                              function(data);
                              in_host_function = false;
                            },
                            nullptr});
  });
}

EXPORT CUresult cuEventCreate(CUevent* event, unsigned flags) {
  return with_context([&] {
    *event = new CUevent_st;
    (*event)->has_time = (flags & CU_EVENT_DISABLE_TIMING) == 0;
    const std::lock_guard lock(driver().events_mutex);
    driver().events.insert(*event);
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuEventDestroy(CUevent event) {
  if (in_host_function) return CUDA_ERROR_NOT_PERMITTED;
  driver().calls.enter();
  const std::lock_guard lock(driver().events_mutex);
  if (driver().events.erase(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
  delete event;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream handle) {
  return on_stream(handle, [&](Stream& stream) {
    return on_event(event, [&](CUevent_st& known) {
      if (const auto answer = driver().captures.record(stream, is_legacy(stream), known.recorded_in)) return *answer;
      driver().streams.record(stream, known);
      return CUDA_SUCCESS;
    });
  });
}

EXPORT CUresult cuEventQuery(CUevent event) {
  return on_event(event, [](CUevent_st& known) {
    ++driver().event_queries;
    if (const auto answer = driver().captures.ask(known.recorded_in)) return *answer;
    if (const auto answer = driver().captures.call_unsafe(relaxed)) return *answer;
    return driver().streams.reached(known) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return on_event(start, [&](CUevent_st& first) {
    return on_event(end, [&](CUevent_st& second) {
      if (!first.has_time || !second.has_time) return CUDA_ERROR_INVALID_HANDLE;
      const auto begun = driver().streams.newest_reached(first), ended = driver().streams.newest_reached(second);
      if (!begun || !ended) return CUDA_ERROR_NOT_READY;
      *milliseconds = std::chrono::duration<float, std::milli>(ended->reached_at - begun->reached_at).count();
      return CUDA_SUCCESS;
    });
  });
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
  return on_event(event, [](CUevent_st& known) {
    if (const auto answer = driver().captures.ask(known.recorded_in)) return *answer;
    if (const auto answer = driver().captures.call_unsafe(relaxed)) return *answer;
    driver().streams.synchronize(known);
    return now_or_dead();
  });
}

// ---- Memory ----

EXPORT CUresult cuMemAlloc(CUdeviceptr* pointer, std::size_t size_bytes) {
  return unsafely([&] { return driver().memory.allocate(pointer, size_bytes); });
}

EXPORT CUresult cuMemFree(CUdeviceptr pointer) {
  return unsafely([&] {
    ++freed_here;
    driver().streams.synchronize_all();
    return driver().memory.free(pointer);
  });
}

EXPORT CUresult cuMemHostAlloc(void** data, std::size_t size_bytes, unsigned) {
  return unsafely([&] { return driver().memory.allocate_host(data, size_bytes); });
}

EXPORT CUresult cuMemFreeHost(void* data) {
  return unsafely([&] {
    ++freed_here;
    driver().streams.synchronize_all();
    return driver().memory.free_host(data);
  });
}

EXPORT CUresult cuMemHostRegister(void* data, std::size_t size_bytes, unsigned) {
  return unsafely([&] {
    ++registered_here;
    return driver().memory.register_host(data, size_bytes);
  });
}

EXPORT CUresult cuMemHostUnregister(void* data) {
  return unsafely([&] {
    ++freed_here;
    driver().streams.synchronize_all();
    return driver().memory.unregister_host(data);
  });
}

EXPORT CUresult cuMemHostGetDevicePointer(CUdeviceptr* pointer, void* data, unsigned) {
  return with_context([&] {
    if (!is_pinned(data, 1)) return CUDA_ERROR_INVALID_VALUE;
    *pointer = reinterpret_cast<CUdeviceptr>(data);
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  return with_context([&] {
    const bool on_device = driver().memory.allocated(pointer, 1);
    if (!on_device && !is_pinned(reinterpret_cast<void*>(pointer), 1)) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
      *static_cast<unsigned*>(value) = on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    } else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
      *static_cast<int*>(value) = 0;
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
  });
}

// To pageable memory it returns once the bytes are there.
EXPORT CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t size_bytes, CUstream handle) {
  return on_stream(handle, [&](Stream& stream) {
    if (!driver().memory.allocated(from, size_bytes) || !driver().memory.copyable(to, size_bytes))
      return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = enqueue(
        stream,
        {CKPT_DOUBLE_TO_HOST, [=] { copy("copy_to_host", to, reinterpret_cast<void*>(from), size_bytes); }, nullptr});
    if (result != CUDA_SUCCESS) return result;
    if (!is_pinned(to, size_bytes)) driver().streams.synchronize(stream);
    return now_or_dead();
  });
}

// From pageable memory it takes a copy before it returns.
EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t size_bytes, CUstream handle) {
  return on_stream(handle, [&](Stream& stream) {
    if (!driver().memory.allocated(to, size_bytes) || !driver().memory.copyable(from, size_bytes))
      return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<std::vector<std::byte>> staged;
    const auto* const bytes = static_cast<const std::byte*>(from);
    if (!is_pinned(from, size_bytes)) {
      staged = std::make_shared<std::vector<std::byte>>(bytes, bytes + size_bytes);
      ++driver().pageable_copies;
    }
    return enqueue(
        stream,
        {CKPT_DOUBLE_TO_DEVICE,
         [=] { copy("copy_to_device", reinterpret_cast<void*>(to), staged ? staged->data() : from, size_bytes); },
         nullptr});
  });
}

EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, std::size_t size_bytes, CUstream handle) {
  return on_stream(handle, [&](Stream& stream) {
    if (!driver().memory.allocated(to, size_bytes) || !driver().memory.allocated(from, size_bytes))
      return CUDA_ERROR_INVALID_VALUE;
    const auto work = [=] {
      copy("copy_within", reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), size_bytes);
    };
    return enqueue(stream, {CKPT_DOUBLE_KERNEL, work, nullptr});
  });
}

EXPORT CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t size_bytes) {
  const CUresult result = cuMemcpyDtoHAsync(to, from, size_bytes, nullptr);
  return result == CUDA_SUCCESS ? cuStreamSynchronize(nullptr) : result;
}

EXPORT CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, std::size_t size_bytes) {
  const CUresult result = cuMemcpyHtoDAsync(to, from, size_bytes, nullptr);
  return result == CUDA_SUCCESS ? cuStreamSynchronize(nullptr) : result;
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t size_bytes, CUstream handle) {
  return on_stream(handle, [&](Stream& stream) {
    if (!driver().memory.allocated(to, size_bytes)) return CUDA_ERROR_INVALID_VALUE;
    return enqueue(stream,
                   {cuda_double::other_work,
                    [=] {
                      std::memset(driver().memory.bytes_at(reinterpret_cast<void*>(to)), value, size_bytes);
                      driver().traffic.add(driver().memory, "fill", {{}, {{reinterpret_cast<void*>(to), size_bytes}}});
                    },
                    nullptr});
  });
}

// ---- Modules ----

EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return unsafely([&] {
    if (const CUresult result = cuda_double::check_image(image, CKPT_DOUBLE_VERSION); result != CUDA_SUCCESS)
      return result;
    *module = new CUmod_st{image};
    const std::lock_guard lock(driver().events_mutex);
    driver().modules.insert(*module);
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuModuleUnload(CUmodule module) {
  const std::lock_guard lock(driver().events_mutex);
  if (driver().modules.erase(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
  delete module;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  static std::map<std::string, CUfunc_st> functions;
  return with_context([&] {
    {
      const std::lock_guard lock(driver().events_mutex);
      if (!driver().modules.contains(module)) return CUDA_ERROR_INVALID_HANDLE;
    }
    const cuda_double::Kernel kernel = cuda_double::find_kernel(name);
    if (kernel == nullptr) return CUDA_ERROR_NOT_FOUND;
    const std::lock_guard lock(driver().events_mutex);
    *function = &functions.emplace(name, CUfunc_st{name, kernel}).first->second;
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned blocks, unsigned y, unsigned z, unsigned threads,
                               unsigned thread_y, unsigned thread_z, unsigned, CUstream handle, void** arguments,
                               void** extra) {
  return on_stream(handle, [&](Stream& stream) {
    if (blocks == 0 || threads == 0 || threads > 1024 || y * z * thread_y * thread_z != 1 || extra != nullptr)
      return CUDA_ERROR_INVALID_VALUE;
    const auto work = [function, run = function->kernel(driver().memory, arguments, blocks, threads)] {
      cuda_double::Footprint footprint;
      if (const CUresult result = run(footprint); result != CUDA_SUCCESS) return driver().streams.kill(result);
      driver().traffic.add(driver().memory, function->name, footprint);
    };
    return enqueue(stream, {CKPT_DOUBLE_KERNEL, work, nullptr});
  });
}

// ---- What tests can do ----

EXPORT void ckpt_double_reset(void) {
  driver().calls.hold(CKPT_DOUBLE_CALLS_RETURN);
  if (driver().streams.death() != 0) driver().memory.forget_all();
  driver().streams.reset();
  driver().bandwidth_bytes_per_s = 0;
  driver().version = 0;
  driver().numa_node = -1;
  driver().stream_write_refusal = 0;
  driver().captures.forget_all();
  driver().memory.refuse_registration(CUDA_SUCCESS);
  driver().memory.hold_registrations(false);
  driver().memory.free_bytes(Memory::window_bytes);
}
EXPORT void ckpt_double_hold(ckpt_double_work kind, int held) { driver().streams.hold(kind, held != 0); }
EXPORT void ckpt_double_let(ckpt_double_work kind, std::uint64_t count) { driver().streams.let(kind, count); }
EXPORT void ckpt_double_hold_calls(ckpt_double_calls how) { driver().calls.hold(how); }
EXPORT std::uint64_t ckpt_double_held_calls(void) { return driver().calls.held(); }
EXPORT std::uint64_t ckpt_double_done(ckpt_double_work kind) { return driver().streams.done(kind); }
EXPORT void ckpt_double_bandwidth(std::uint64_t bytes_per_s) { driver().bandwidth_bytes_per_s = bytes_per_s; }
EXPORT void ckpt_double_kill_context(int result) { driver().streams.kill(result); }
EXPORT void ckpt_double_kill_context_at(ckpt_double_work kind, std::uint64_t countdown, int result) {
  driver().streams.kill_at(kind, countdown, result);
}
EXPORT void ckpt_double_refuse_registration(int result) {
  driver().memory.refuse_registration(static_cast<CUresult>(result));
}
EXPORT void ckpt_double_free_bytes(std::uint64_t bytes) { driver().memory.free_bytes(bytes); }
EXPORT std::uint64_t ckpt_double_registrations(void) { return driver().memory.registrations(); }
EXPORT std::uint64_t ckpt_double_registered_here(void) { return registered_here; }
EXPORT std::uint64_t ckpt_double_refused_registrations(void) { return driver().memory.refused_registrations(); }
EXPORT std::uint64_t ckpt_double_registered(void) { return driver().memory.registered(); }
EXPORT std::uint64_t ckpt_double_largest_registration(void) { return driver().memory.largest_registration(); }
EXPORT void ckpt_double_hold_registrations(int held) { driver().memory.hold_registrations(held != 0); }
EXPORT void ckpt_double_let_registrations(std::uint64_t count) { driver().memory.let_registrations(count); }
EXPORT std::uint64_t ckpt_double_freed_here(void) { return freed_here; }
EXPORT std::uint64_t ckpt_double_allocations(void) { return driver().memory.allocations(); }
EXPORT void ckpt_double_queue_depth(std::uint64_t operations) { driver().streams.queue_depth(operations); }
EXPORT std::uint64_t ckpt_double_queue_full(void) { return driver().streams.queue_full(); }
EXPORT void ckpt_double_numa_node(int node) { driver().numa_node = node; }
EXPORT void ckpt_double_driver_version(int version) { driver().version = version; }
EXPORT void ckpt_double_refuse_stream_writes(int result) { driver().stream_write_refusal = result; }
EXPORT int ckpt_double_traffic_at(std::uint64_t index, ckpt_double_traffic* sums) {
  return driver().traffic.at(index, sums) ? 1 : 0;
}
EXPORT std::uint64_t ckpt_double_pageable_copies(void) { return driver().pageable_copies; }
EXPORT std::uint64_t ckpt_double_event_queries(void) { return driver().event_queries; }
EXPORT std::uint64_t ckpt_double_disturbed_captures(void) { return driver().captures.invalidated(); }

// ---- What other test doubles can do ----

CUresult cuda_double::launch(CUstream stream, std::function<void()> kernel) {
  Stream* const found = driver().streams.find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto to_its_end = [kernel = std::move(kernel)] {
    kernel();
    driver().calls.kernel_ended();
  };
  driver().streams.enqueue(*found, {CKPT_DOUBLE_KERNEL, to_its_end, nullptr});
  return now_or_dead();
}
void cuda_double::use() { driver().captures.call_unsafe(relaxed); }
std::byte* cuda_double::bytes_at(const void* address, std::size_t size_bytes) {
  if (!driver().memory.allocated(reinterpret_cast<CUdeviceptr>(address), size_bytes)) return nullptr;
  return static_cast<std::byte*>(driver().memory.bytes_at(const_cast<void*>(address)));
}
bool cuda_double::dead() { return driver().streams.death() != 0; }
