// ChunkBuffers lends buffers to coding jobs, for the chunks that they read. The number of buffers is limited, and
// coding jobs use the same ones again and again. So only the first use of a buffer touches fresh memory, which is slow.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace ckpt::agent {

class ChunkBuffers {
 public:
  // At least as many as a parity group can have members. A coding job needs one buffer per source that it fetches, for
  // each chunk. It needs one more if the chunk's result, rounded up to whole leaves, would reach beyond the end of its
  // slot.
  static constexpr std::size_t count = 64;
  static constexpr std::size_t size_bytes = 1u << 20;

  using Buffer = std::byte*;  // has size_bytes bytes, begins at a page, and belongs to this object
  using OnGranted = std::function<void(std::vector<Buffer> buffers)>;

  ChunkBuffers() = default;
  ~ChunkBuffers();
  ChunkBuffers(const ChunkBuffers&) = delete;
  ChunkBuffers& operator=(const ChunkBuffers&) = delete;

  // Calls `grant` with `wanted` buffers (at most `count`) as soon as that many are free: at once, or within a later
  // call of give_back(). Serves requests in order. A request gets all its buffers at once, so two requests cannot block
  // each other.
  void ask(std::size_t wanted, OnGranted grant);
  void give_back(std::vector<Buffer> buffers);

 private:
  struct Request {
    std::size_t wanted = 0;
    OnGranted grant;
  };
  void serve();

  std::mutex mutex_;
  std::size_t made_ = 0;
  std::vector<Buffer> free_;
  std::deque<Request> waiting_;  // bounded: each coding job has a limited number of chunks under way
};

}  // namespace ckpt::agent
