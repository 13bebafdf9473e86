// Encodes parity on the GPU: Coder::combine() (kernels/coder.hpp) for device memory. Only builds with CUDA have it.
//
// A call enqueues one kernel on the stream and returns. It does not wait for the GPU, allocate or copy. Until that
// kernel has ended, do not change or free the memory of the sources, and do not use the memory of the outputs. The
// matrix and the two spans may change as soon as the call returns. Any length and any alignment will do. A source that
// is shorter than the outputs counts as if zeros followed it. Outputs must overlap neither each other nor a source.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "kernels/coder.hpp"

namespace ckpt::kernels::device {

// Sets outputs[r] to the sum over all columns c of coefficient (r, c) * sources[c]. With `to_sum`, adds this sum to the
// bytes that outputs[r] has. `length_bytes` is the length of each output. A matrix of one row of ones is plain XOR, for
// which there is a faster kernel. Returns whether the launch succeeded. A later call on the stream returns errors of
// the execution. Throws std::invalid_argument if the numbers of sources or outputs do not fit the matrix, or if an
// output asks for digests: enqueue digest_leaves() (kernels/digest_cuda.hpp) afterwards to get them.
cudaError_t combine(const Matrix& matrix, std::span<const Source> sources, std::span<const Output> outputs,
                    std::size_t length_bytes, cudaStream_t stream, bool to_sum = false);

}  // namespace ckpt::kernels::device
