// The kernels that the test double of libcuda.so.1 can run: those of kernels/capture_kernels.cu, found by name. It runs
// the same code, compiled for the host.
#pragma once

#include <functional>
#include <string_view>

#include "memory.hpp"

namespace cuda_double {

// Takes the arguments out of what cuLaunchKernel() gets, at the launch; what it returns is the work. The work touches
// nothing and returns CUDA_ERROR_ILLEGAL_ADDRESS if a range that it would read or write is not within one allocation or
// registration at that moment.
using Kernel = std::function<CUresult()> (*)(const Memory& memory, void** arguments, unsigned blocks, unsigned threads);

// Null for a name that is not known.
Kernel find_kernel(std::string_view name);

}  // namespace cuda_double
