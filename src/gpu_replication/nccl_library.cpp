#include "gpu_replication/nccl_library.hpp"

#include <dlfcn.h>

#include <memory>

#include "base/error.hpp"

namespace ckpt::device {
namespace {

constexpr const char* nccl_file_name = "libnccl.so.2";

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100);
}

struct CloseNccl {
  void operator()(void* library) const { ::dlclose(library); }
};
using OpenNccl = std::unique_ptr<void, CloseNccl>;

template <class Function>
void look_for(const OpenNccl& library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library.get(), name));
}

template <class Function>
void find(const OpenNccl& library, const char* name, Function*& function) {
  look_for(library, name, function);
  if (function == nullptr)
    refuse_nccl(std::string(nccl_file_name) + " lacks " + name + "; install NCCL " + version_text(nccl::version_min) +
                " or newer");
}

void check_version(const NcclLibrary& library) {
  int version = 0;
  library.GetVersion(&version);
  if (version < nccl::version_min)
    refuse_nccl("NCCL " + version_text(version) + " is too old; install " + version_text(nccl::version_min) +
                " or newer");
}

NcclLibrary load_nccl() {
  OpenNccl opened(::dlopen(nccl_file_name, RTLD_NOW | RTLD_LOCAL));
  if (!opened) refuse_nccl("NCCL cannot be loaded (" + std::string(::dlerror()) + "); install it");
  NcclLibrary library;
#define CKPT_NCCL_FIND(name) find(opened, "nccl" #name, library.name);
  CKPT_NCCL_FUNCTIONS(CKPT_NCCL_FIND)
#undef CKPT_NCCL_FIND
#define CKPT_NCCL_LOOK_FOR(name) look_for(opened, "nccl" #name, library.name);
  CKPT_NCCL_OPTIONAL_FUNCTIONS(CKPT_NCCL_LOOK_FOR)
#undef CKPT_NCCL_LOOK_FOR
  check_version(library);
  static_cast<void>(opened.release());  // stays
  return library;
}

}  // namespace

void refuse_nccl(const std::string& why) {
  throw Failure(CKPT_ERR_INVALID, "checkpoints cannot go from GPU to GPU: " + why);
}

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = load_nccl();
  return library;
}

std::string nccl_text(const char* call, nccl::Result result) {
  return std::string(call) + ": " + nccl_library().GetErrorString(result);
}

void check_nccl(const char* call, nccl::Result result) {
  if (result != nccl::success && result != nccl::in_progress) throw Failure(CKPT_ERR_SYSTEM, nccl_text(call, result));
}

}  // namespace ckpt::device
