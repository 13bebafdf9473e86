// Declares the compiled GPU kernels of capture_kernels.cu, in two forms. src/device passes one of the two to the CUDA
// driver, with cuModuleLoadData(). Only builds with CUDA have them.
#pragma once

// The image has machine code for every GPU that this build supports, and PTX for newer GPUs. A CUDA driver that is
// older than the CUDA toolkit of this build may refuse the image. Then pass the PTX text, which the CUDA driver
// compiles.
extern "C" const unsigned long long capture_kernels_image[];
extern "C" const unsigned char capture_kernels_ptx[];
