// The CUDA driver, found at run time: one build serves machines with and without a GPU, and no second CUDA runtime
// comes into the training process. Its primary contexts are those that PyTorch's runtime uses, and a cudaStream_t is a
// CUstream.
//
// Thread-safe. A driver stays loaded once it is.
#pragma once

#include <cuda.h>

#include <string>

namespace ckpt::device {

// The driver's functions by the names under which it exports them: a call behaves as the header says that this was
// compiled with, whatever the driver's own version. Names that the header replaces by others are those others.
#define CKPT_CUDA_FUNCTIONS(X)         \
  X(cuInit)                            \
  X(cuDriverGetVersion)                \
  X(cuGetErrorName)                    \
  X(cuGetErrorString)                  \
  X(cuDeviceGet)                       \
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
  X(cuPointerGetAttribute)             \
  X(cuModuleLoadData)                  \
  X(cuModuleUnload)                    \
  X(cuModuleGetFunction)               \
  X(cuLaunchKernel)

struct CudaDriver {
#define CKPT_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  CKPT_CUDA_FUNCTIONS(CKPT_CUDA_MEMBER)
#undef CKPT_CUDA_MEMBER
};

// Loads the driver and starts it, the first time. Throws Failure (CKPT_ERR_INVALID) where there is none, where it is
// too old or lacks a function; its sentence follows after a tensor's name. Tried again at the next call.
const CudaDriver& cuda_driver();

// A call that failed: "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (out of memory)".
std::string cuda_text(const char* call, CUresult result);
// Throws Failure (CKPT_ERR_SYSTEM) with that text.
void check_cuda(const char* call, CUresult result);

// Calls a function of the driver and checks.
#define CKPT_CUDA(name, ...) ::ckpt::device::check_cuda(#name, ::ckpt::device::cuda_driver().name(__VA_ARGS__))

}  // namespace ckpt::device
