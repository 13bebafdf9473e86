// The compiled kernels of capture_kernels.cu, for every GPU that this build is for (only where the build has CUDA).
#pragma once

// Starts the module's image: what cuModuleLoadData() takes.
extern "C" const unsigned long long capture_kernels_image[];
