// digest_leaves() computes leaf digests of device memory on the GPU, before the bytes are copied to the host. Only
// builds with CUDA have it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace ckpt::kernels::device {

// Writes leaf_count(length_bytes) digests to `digests`, which is device memory too. Any length and alignment. It
// enqueues one launch on the stream, and does not synchronize, allocate or copy. Memory must not change until the
// stream has passed it. Returns what the launch returned. Errors of its execution come with a later call on the stream.
cudaError_t digest_leaves(const void* data, std::uint64_t length_bytes, std::uint64_t* digests, cudaStream_t stream);

}  // namespace ckpt::kernels::device
