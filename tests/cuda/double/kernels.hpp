// The kernels that the test double of libcuda.so.1 can run: those of kernels/capture_kernels.cu, found by name. It runs
// the same code, compiled for the host.
#pragma once

#include <functional>
#include <string_view>

#include "memory.hpp"
#include "traffic.hpp"

namespace cuda_double {

// The work of one launch. It adds all that the kernel reads and writes to `footprint`. It touches nothing and returns
// CUDA_ERROR_ILLEGAL_ADDRESS if one of these ranges is not within one allocation or registration at that moment.
using Work = std::function<CUresult(Footprint& footprint)>;
// Takes the arguments out of what cuLaunchKernel() gets, at the launch.
using Kernel = Work (*)(const Memory& memory, void** arguments, unsigned blocks, unsigned threads);

// Null for a name that is not known.
Kernel find_kernel(std::string_view name);

}  // namespace cuda_double
