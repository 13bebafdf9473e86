// Lets another test double, such as that of NCCL, put its own work onto streams of the test double of libcuda.so.1.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <functional>

namespace cuda_double {

// Enqueues a kernel. The kernel may run long, but must return soon once dead() is true. If dead() is true before the
// kernel begins, the kernel never runs.
__attribute__((visibility("default"))) CUresult launch(CUstream stream, std::function<void()> kernel);
// Returns the host memory that stands for `size_bytes` of device memory at `address`. Null unless all of it is
// allocated.
__attribute__((visibility("default"))) std::byte* bytes_at(const void* address, std::size_t size_bytes);
// Stands for a call that CUDA forbids during a graph capture, unless the calling thread has allowed such calls.
__attribute__((visibility("default"))) void use();
// Whether the context has died.
__attribute__((visibility("default"))) bool dead();

}  // namespace cuda_double
