// ChunkBuffers lends buffers to coding jobs, for the chunks that they read. The number of buffers is fixed, and each is
// used again and again. So only its first use touches fresh memory, which is slow.
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
  // At least as many as a parity group can have members. One chunk needs a buffer per fetched source, and one more for
  // a result that does not fit the end of its slot.
  static constexpr std::size_t count = 64;
  static constexpr std::size_t size_bytes = 1u << 20;

  using Buffer = std::byte*;  // size_bytes, aligned to a page
  using OnGranted = std::function<void(std::vector<Buffer> buffers)>;

  ChunkBuffers() = default;
  ~ChunkBuffers();
  ChunkBuffers(const ChunkBuffers&) = delete;
  ChunkBuffers& operator=(const ChunkBuffers&) = delete;

  // Calls `grant` with `wanted` buffers (at most `count`) as soon as that many are free: at once, or from give_back().
  // Serves requests in order. Each gets all of its buffers or none, so two requests cannot block each other.
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
