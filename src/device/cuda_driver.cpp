#include "device/cuda_driver.hpp"

#include <dlfcn.h>

#include <memory>
#include <string_view>

#include "base/error.hpp"

namespace ckpt::device {
namespace {

constexpr const char* file_name = "libcuda.so.1";

[[noreturn]] void refuse(const std::string& why) { throw Failure(CKPT_ERR_INVALID, "is in device memory, but " + why); }

struct Close {
  void operator()(void* library) const { ::dlclose(library); }
};
using Library = std::unique_ptr<void, Close>;

Library open() {
  Library library(::dlopen(file_name, RTLD_NOW | RTLD_LOCAL));
  if (!library)
    refuse("there is no CUDA driver (" + std::string(::dlerror()) + "); install it, or register a host copy");
  return library;
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Functions that got a new name and kept their arguments. Older drivers have only the old name.
struct Renamed {
  std::string_view now, before;
};
constexpr Renamed renamed[] = {{"cuEventElapsedTime_v2", "cuEventElapsedTime"}};

template <class Function>
void find(const Library& library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library.get(), name));
  for (const auto& [now, before] : renamed)
    if (function == nullptr && name == now)
      function = reinterpret_cast<Function*>(::dlsym(library.get(), before.data()));
  if (function == nullptr)
    refuse(std::string(file_name) + " lacks " + name + "; install a driver for CUDA " +
           version_text(oldest_driver_version) + " or newer");
}

void check_version(const CudaDriver& driver) {
  int version = 0;
  driver.cuDriverGetVersion(&version);
  if (version < oldest_driver_version)
    refuse("the CUDA driver is too old: it is for CUDA " + version_text(version) + ", and ckptengine needs " +
           version_text(oldest_driver_version) + " (driver 535) or newer; update the driver");
}

std::string text_of(const CudaDriver& driver, const char* call, CUresult result) {
  const char* name = nullptr;
  const char* words = nullptr;
  if (driver.cuGetErrorName(result, &name) != CUDA_SUCCESS) name = "an unknown error";
  if (driver.cuGetErrorString(result, &words) != CUDA_SUCCESS) words = "no text";
  return std::string(call) + ": " + name + " (" + words + ")";
}

CudaDriver load() {
  Library library = open();
  CudaDriver driver;
#define CKPT_CUDA_TEXT(name) #name
#define CKPT_CUDA_FIND(name) find(library, CKPT_CUDA_TEXT(name), driver.name);
  CKPT_CUDA_FUNCTIONS(CKPT_CUDA_FIND)
#undef CKPT_CUDA_FIND
#undef CKPT_CUDA_TEXT
  check_version(driver);
  if (const CUresult result = driver.cuInit(0); result != CUDA_SUCCESS)
    refuse("the CUDA driver does not start: " + text_of(driver, "cuInit", result));
  static_cast<void>(library.release());  // keep it loaded
  return driver;
}

}  // namespace

const CudaDriver& cuda_driver() {
  static const CudaDriver driver = load();
  return driver;
}

std::string cuda_text(const char* call, CUresult result) { return text_of(cuda_driver(), call, result); }

void check_cuda(const char* call, CUresult result) {
  if (result != CUDA_SUCCESS) throw Failure(CKPT_ERR_SYSTEM, cuda_text(call, result));
}

}  // namespace ckpt::device
