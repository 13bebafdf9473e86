#include "device/cuda_bounce.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/error.hpp"
#include "kernels/digest.hpp"

namespace ckpt::device {
namespace {

constexpr std::size_t leaf_bytes = kernels::leaf_size_bytes;
// To allocate buffers takes about 1 ms per MiB, in each restore. Larger copies are hardly faster.
constexpr std::size_t part_max_bytes = 64 * leaf_bytes;
constexpr auto bounce_pause = std::chrono::microseconds(50);

// A link to a GPU takes what some eight of them copy. Other ranks of the node need cores, too.
unsigned thread_count() { return std::clamp(std::thread::hardware_concurrency() / 2, 1u, 8u); }

}  // namespace

CudaBounce::CudaBounce() : threads_(thread_count()) {
  for (Buffer& buffer : buffers_) buffer.memory = PinnedMemory(part_max_bytes);
}

void CudaBounce::copy_to_device(CUdeviceptr to, const std::byte* from, std::size_t size_bytes, CUstream stream,
                                Deadline deadline) {
  for (std::size_t at = 0; at < size_bytes; at += part_max_bytes)
    copy_part(to + at, from + at, std::min(part_max_bytes, size_bytes - at), stream, deadline);
}

void CudaBounce::copy_part(CUdeviceptr to, const std::byte* from, std::size_t size_bytes, CUstream stream,
                           Deadline deadline) {
  const Buffer& buffer = buffers_[next_++ % buffers_.size()];
  while (!buffer.emptied.reached()) {
    if (deadline.passed())
      throw Failure(CKPT_ERR_TIMEOUT,
                    "the GPU did not load the state in time; check whether the GPU hangs (nvidia-smi)");
    std::this_thread::sleep_for(bounce_pause);
  }
  auto* const staged = buffer.memory.as<std::byte>();
  threads_.start(kernels::leaf_count(size_bytes), [=](std::size_t first, std::size_t last) {
    const std::size_t begin = first * leaf_bytes, end = std::min(last * leaf_bytes, size_bytes);
    std::memcpy(staged + begin, from + begin, end - begin);
    return true;
  });
  while (!threads_.wait(Deadline::in_ms(60'000))) {
  }
  CKPT_CUDA(cuMemcpyHtoDAsync_v2, to, staged, size_bytes, stream);
  buffer.emptied.record(stream);
}

}  // namespace ckpt::device
