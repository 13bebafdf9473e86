// digest_leaves() computes leaf digests of device memory on the GPU, before the bytes are copied to the host. Each
// block of threads does what a block of the capture's kernel does (kernels/pack_kernel.cuh). Only builds with CUDA have
// it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace ckpt::kernels::device {

// Writes leaf_count(length_bytes) digests to `digests`. If `copy` is not null, also copies the bytes there, as packing
// does. All pointers are device memory. Any length and any alignment of `data` will do. `copy` is 16-byte aligned. The
// call enqueues one kernel on the stream and returns. It does not wait for the GPU, allocate or copy. Until that kernel
// has ended, do not change or free the memory at `data`, and do not use the memory at `digests` and `copy`. Returns
// whether the launch succeeded. A later call on the stream returns errors of the execution.
cudaError_t digest_leaves(const void* data, std::uint64_t length_bytes, std::uint64_t* digests, cudaStream_t stream,
                          void* copy = nullptr);

}  // namespace ckpt::kernels::device
