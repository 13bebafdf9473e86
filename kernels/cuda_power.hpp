// cuda_power() computes what powf() computes in a CUDA kernel, bit for bit. torch's fused Adam for GPUs corrects the
// bias of the moments with it. The C library's powf() rounds differently.
#pragma once

namespace ckpt::kernels {

// For a base between 0 and 1, and an exponent of at least 1.
float cuda_power(float base, float exponent);

}  // namespace ckpt::kernels
