// Lets another test double, such as that of NCCL, put its own work onto streams of the test double of libcuda.so.1.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <functional>

namespace cuda_double {

// Enqueues a kernel. It may take long, and returns soon once dead(); where that is so before it begins it never runs.
__attribute__((visibility("default"))) CUresult launch(CUstream stream, std::function<void()> kernel);
// Where the bytes are that a kernel sees at this address of device memory; null unless all of them are allocated.
__attribute__((visibility("default"))) std::byte* bytes_at(const void* address, std::size_t size_bytes);
// What a library does that captures of graphs do not allow, unless the thread has said to leave them alone.
__attribute__((visibility("default"))) void use();
// Whether the context has died.
__attribute__((visibility("default"))) bool dead();

}  // namespace cuda_double
