// The compiled kernels of capture_kernels.cu, for every GPU that this build supports (only in builds with CUDA).
#pragma once

// The first words of the module's image, which cuModuleLoadData() takes.
extern "C" const unsigned long long capture_kernels_image[];
