// Whether a driver of some version takes the image of a module, in the test double of libcuda.so.1.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace cuda_double {

inline bool is_fatbin(const void* image) {
  constexpr std::uint32_t magic = 0xBA55ED50;
  return std::memcmp(image, &magic, sizeof(magic)) == 0;
}

// As cuDriverGetVersion() counts: the CUDA that brought this version of PTX. 0 if it is no PTX.
inline int cuda_of_ptx(const char* text) {
  int major = 0, minor = 0;
  const char* const line = std::strstr(text, "\n.version ");
  if (line == nullptr || std::sscanf(line, "\n.version %d.%d", &major, &minor) != 2) return 0;
  return (major + 4) * 1000 + minor * 10;
}

// A driver takes no machine code of a newer toolkit, and no newer PTX.
inline CUresult check_image(const void* image, int driver_version) {
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (is_fatbin(image)) return driver_version / 1000 < CUDA_VERSION / 1000 ? CUDA_ERROR_INVALID_IMAGE : CUDA_SUCCESS;
  const int version = cuda_of_ptx(static_cast<const char*>(image));
  if (version == 0) return CUDA_ERROR_INVALID_IMAGE;
  return version > driver_version ? CUDA_ERROR_UNSUPPORTED_PTX_VERSION : CUDA_SUCCESS;
}

}  // namespace cuda_double
