#include "gpu_replication/nccl_environment.hpp"

#include <string>
#include <string_view>

#include "gpu_replication/nccl_library.hpp"

namespace ckpt::device {
namespace {

struct Override {
  std::string_view variable;
  const char* what;
};

constexpr const char* blocks = "how many blocks of the GPU a communicator takes";
constexpr Override overrides[] = {
    {"NCCL_MIN_CTAS", blocks},
    {"NCCL_MAX_CTAS", blocks},
    {"NCCL_MIN_NRINGS", blocks},
    {"NCCL_MIN_NCHANNELS", blocks},
    {"NCCL_MIN_P2P_NCHANNELS", blocks},
    {"NCCL_COMM_BLOCKING", "whether calls wait for other ranks"},
    {"NCCL_LAUNCH_ORDER_IMPLICIT", "in which order communicators run"},
    {"CUDA_LAUNCH_BLOCKING", "whether launches wait for the GPU"},
    {"NCCL_COMM_ID", "where ranks meet"},
};

}  // namespace

void refuse_nccl_overrides(const char* const* environment) {
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view line = *environment;
    const std::size_t equals = line.find('=');
    if (equals == line.npos || equals + 1 == line.size()) continue;  // NCCL takes no notice of an empty value
    for (const auto& [variable, what] : overrides)
      if (line.substr(0, equals) == variable)
        refuse_nccl("the environment variable " + std::string(variable) + " decides " + what +
                    ", for ckptengine's communicator too; unset it");
  }
}

}  // namespace ckpt::device
