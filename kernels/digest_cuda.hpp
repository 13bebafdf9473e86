// Leaf digests on the GPU: the counterpart of digest_leaves() for device memory (only where the build has CUDA), so
// that the digest of what is copied to the host was made before the copy.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace ckpt::kernels::device {

// Writes leaf_count(length_bytes) digests to `digests`, device memory too. Any length and alignment. Stream-ordered:
// one launch, which does not synchronize, allocate or copy; memory must stay as it is until the stream has come past.
// Returns what the launch returned; errors of its execution come with a later call on the stream.
cudaError_t digest_leaves(const void* data, std::uint64_t length_bytes, std::uint64_t* digests, cudaStream_t stream);

}  // namespace ckpt::kernels::device
