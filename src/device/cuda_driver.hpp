// CudaDriver loads the CUDA driver at run time and gives access to its functions. So one build serves machines with and
// without a GPU. The training process gets no second CUDA runtime: contexts and streams are those that PyTorch's
// runtime uses, and a cudaStream_t is a CUstream.
//
// Thread-safe. The driver is never unloaded.
#pragma once

#include <cuda.h>

#include <string>

namespace ckpt::device {

// The oldest driver that a build serves, as cuDriverGetVersion() counts: CUDA 12.2, driver 535.
inline constexpr int oldest_driver_version = 12020;

// The driver's functions by their exported names. A call behaves as the header cuda.h of the build says, whatever the
// driver's own version. If cuda.h redefines a name by a macro, the list has the redefined name. All functions must be
// in the oldest driver, under this or an older name (cuda_driver.cpp).
#define CKPT_CUDA_FUNCTIONS(X)         \
  X(cuInit)                            \
  X(cuDriverGetVersion)                \
  X(cuGetErrorName)                    \
  X(cuGetErrorString)                  \
  X(cuDeviceGet)                       \
  X(cuDeviceGetAttribute)              \
  X(cuDevicePrimaryCtxRetain)          \
  X(cuDevicePrimaryCtxRelease_v2)      \
  X(cuCtxPushCurrent_v2)               \
  X(cuCtxPopCurrent_v2)                \
  X(cuCtxGetStreamPriorityRange)       \
  X(cuThreadExchangeStreamCaptureMode) \
  X(cuStreamCreateWithPriority)        \
  X(cuStreamDestroy_v2)                \
  X(cuStreamWaitEvent)                 \
  X(cuStreamIsCapturing)               \
  X(cuStreamWriteValue32)              \
  X(cuEventCreate)                     \
  X(cuEventDestroy_v2)                 \
  X(cuEventRecord)                     \
  X(cuEventQuery)                      \
  X(cuEventElapsedTime)                \
  X(cuMemAlloc_v2)                     \
  X(cuMemFree_v2)                      \
  X(cuMemHostAlloc)                    \
  X(cuMemFreeHost)                     \
  X(cuMemHostRegister_v2)              \
  X(cuMemHostUnregister)               \
  X(cuMemHostGetDevicePointer_v2)      \
  X(cuMemcpyDtoHAsync_v2)              \
  X(cuMemcpyHtoDAsync_v2)              \
  X(cuMemcpyDtoDAsync_v2)              \
  X(cuPointerGetAttribute)             \
  X(cuModuleLoadData)                  \
  X(cuModuleUnload)                    \
  X(cuModuleGetFunction)               \
  X(cuLaunchKernel)

struct CudaDriver {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration
#define CKPT_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  CKPT_CUDA_FUNCTIONS(CKPT_CUDA_MEMBER)
#undef CKPT_CUDA_MEMBER
};

// Loads and starts the driver at the first call. Throws Failure (CKPT_ERR_INVALID) if there is none, or if it is too
// old or lacks a function. The caller puts a tensor's name before the sentence. Each later call tries again.
const CudaDriver& cuda_driver();

// Describes a failed call: "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (out of memory)".
std::string cuda_text(const char* call, CUresult result);
// Throws Failure (CKPT_ERR_SYSTEM) with that text.
void check_cuda(const char* call, CUresult result);

// Calls a function of the driver and checks its result.
#define CKPT_CUDA(name, ...) ::ckpt::device::check_cuda(#name, ::ckpt::device::cuda_driver().name(__VA_ARGS__))

}  // namespace ckpt::device
