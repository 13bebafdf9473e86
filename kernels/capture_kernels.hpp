// Declares the code of capture_kernels.cu. src/device loads it into the CUDA driver. Only builds with CUDA have it.
#pragma once

// Both are an argument for cuModuleLoadData(). The image has machine code for every GPU that this build supports, and
// PTX for newer ones. A driver older than the toolkit may refuse it, and takes the PTX text instead.
extern "C" const unsigned long long capture_kernels_image[];
extern "C" const unsigned char capture_kernels_ptx[];
