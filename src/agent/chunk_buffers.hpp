// Memory for chunks of pieces on their way to be combined: bounded for the whole agent, touched once and used again.
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
  // One source more than a group has, for a result that does not fit its place.
  static constexpr std::size_t count = 64;
  static constexpr std::size_t size_bytes = 1u << 20;

  using Buffer = std::byte*;  // size_bytes, aligned to a page
  using OnGranted = std::function<void(std::vector<Buffer> buffers)>;

  ChunkBuffers() = default;
  ~ChunkBuffers();
  ChunkBuffers(const ChunkBuffers&) = delete;
  ChunkBuffers& operator=(const ChunkBuffers&) = delete;

  // Calls `grant` with so many buffers, at most `count`, when they are free: at once, or from give_back(). All or none,
  // first come first served, so nobody waits with some of them in hand.
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
  std::deque<Request> waiting_;  // bounded by the windows of what combines
};

}  // namespace ckpt::agent
