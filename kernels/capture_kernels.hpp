// Declares the machine code of capture_kernels.cu, for every GPU that this build supports. src/device loads it into the
// CUDA driver. Only builds with CUDA have it.
#pragma once

// The module's image: the argument for cuModuleLoadData().
extern "C" const unsigned long long capture_kernels_image[];
