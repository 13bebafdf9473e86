// Declares the code of capture_kernels.cu. src/device loads it into the CUDA driver. Only builds with CUDA have it.
#pragma once

// Each can be passed to cuModuleLoadData(). The image has machine code for every GPU that this build supports, and PTX
// for newer GPUs. A driver older than the CUDA toolkit of this build may refuse the image. Then pass the PTX text.
extern "C" const unsigned long long capture_kernels_image[];
extern "C" const unsigned char capture_kernels_ptx[];
