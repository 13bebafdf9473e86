#include "device/cuda_bounce.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "kernels/digest.hpp"

namespace ckpt::device {
namespace {

constexpr std::size_t leaf_bytes = kernels::leaf_size_bytes;
// To allocate buffers takes about 1 ms per MiB, in each restore. So they are small: all of them have 8 MiB.
constexpr std::size_t part_max_bytes = 8 * leaf_bytes;
constexpr auto bounce_pause = std::chrono::microseconds(20);

// A link to a GPU takes what some eight of them copy. Other ranks of the node need cores, too.
unsigned thread_count() { return std::clamp(std::thread::hardware_concurrency() / 2, 1u, 8u); }

}  // namespace

CudaBounce::CudaBounce(const Context& context)
    : context_(context), memory_(buffer_count * part_max_bytes), threads_(thread_count()) {
  for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].data = memory_.as<std::byte>() + i * part_max_bytes;
}

void CudaBounce::copy_to_device(CUdeviceptr to, const std::byte* from, std::size_t size_bytes, CUstream stream,
                                Deadline deadline) {
  threads_.start(kernels::leaf_count(size_bytes), [=, this](std::size_t first, std::size_t last) {
    const std::size_t end = std::min(last * leaf_bytes, size_bytes);
    try {
      const ContextScope scope(context_);
      for (std::size_t at = first * leaf_bytes; at < end; at += part_max_bytes)
        copy_part(to + at, from + at, std::min(part_max_bytes, end - at), stream, deadline);
      return true;
    } catch (...) {
      return keep_failure(std::current_exception());
    }
  });
  while (!threads_.wait(Deadline::in_ms(60'000))) {
  }
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void CudaBounce::copy_part(CUdeviceptr to, const std::byte* from, std::size_t size_bytes, CUstream stream,
                           Deadline deadline) {
  Buffer& buffer = buffers_[next_.fetch_add(1, std::memory_order_relaxed) % buffers_.size()];
  const std::lock_guard lock(buffer.mutex);
  while (!buffer.emptied.reached()) {
    if (deadline.passed())
      throw Failure(CKPT_ERR_TIMEOUT,
                    "the GPU did not load the state in time; check whether the GPU hangs (nvidia-smi)");
    std::this_thread::sleep_for(bounce_pause);
  }
  std::memcpy(buffer.data, from, size_bytes);
  CKPT_CUDA(cuMemcpyHtoDAsync_v2, to, buffer.data, size_bytes, stream);
  buffer.emptied.record(stream);
}

bool CudaBounce::keep_failure(std::exception_ptr failure) {
  const std::lock_guard lock(failure_mutex_);
  if (!failure_) failure_ = std::move(failure);
  return false;
}

}  // namespace ckpt::device
