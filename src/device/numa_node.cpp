#include "device/numa_node.hpp"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "device/cuda_driver.hpp"

namespace ckpt::device {
namespace {

// CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, which older toolkits do not name. A driver that does not know it says so.
constexpr auto host_numa_id = static_cast<CUdevice_attribute>(134);

constexpr std::size_t bits_per_word = 8 * sizeof(unsigned long);
using NodeMask = std::array<unsigned long, 1024 / bits_per_word>;  // as many nodes as Linux allows

}  // namespace

int closest_numa_node(CUdevice device) {
  int node = -1;
  return cuda_driver().cuDeviceGetAttribute(&node, host_numa_id, device) == CUDA_SUCCESS ? node : -1;
}

std::string move_to_numa_node(const Range& range, int node) {
  NodeMask mask{};
  const auto bit = static_cast<std::size_t>(node);
  if (bit >= mask.size() * bits_per_word) return std::strerror(EINVAL);
  mask[bit / bits_per_word] = 1UL << bit % bits_per_word;
  // The kernel wants the address of a page.
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(range.data) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(range.data) + range.size_bytes;
  // The kernel takes one bit less than it is told.
  const long result = ::syscall(SYS_mbind, begin, end - begin, MPOL_PREFERRED, mask.data(),
                                mask.size() * bits_per_word + 1, MPOL_MF_MOVE);
  return result == 0 ? "" : std::strerror(errno);
}

}  // namespace ckpt::device
