// encode() runs the kernels with which jobs make parity on the GPU (kernels/encode_body.hpp), through CUDA's runtime
// library. Benches measure them with it. Only builds with CUDA have it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/encode_body.hpp"

namespace ckpt::kernels::device {

// Makes `leaves` leaves of parity and all digests. Sets the keys of the job. The call enqueues one kernel on the stream
// and returns. `is_plain`: all coefficients are 1. Returns whether the launch succeeded.
cudaError_t encode(EncodeJob job, bool is_plain, std::uint64_t leaves, cudaStream_t stream);

}  // namespace ckpt::kernels::device
