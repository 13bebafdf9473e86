// Parity on the GPU: the counterpart of Coder::combine for device memory (only where the build has CUDA).
//
// Stream-ordered: a call enqueues one kernel and returns; it does not synchronize, allocate or copy. Memory must stay
// as it is until the stream has come past; matrix and spans are read before the call returns. Lengths and alignments
// are free. Sources that are shorter count as if zeros followed. Outputs overlap neither each other nor a source.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "kernels/coder.hpp"

namespace ckpt::kernels::device {

// outputs[r] = the sum over columns c of coefficient (r, c) * sources[c]; with `to_sum`, added to what they are.
// Digests are not made: that is for kernels/digest_cuda.hpp, behind it in the stream. One row of ones is plain XOR,
// with a kernel of its own. Returns what the launch returned; errors of its execution come with a later call on the
// stream. Throws std::invalid_argument where numbers do not fit the matrix.
cudaError_t combine(const Matrix& matrix, std::span<const Source> sources, std::span<const Output> outputs,
                    std::size_t length_bytes, cudaStream_t stream, bool to_sum = false);

}  // namespace ckpt::kernels::device
