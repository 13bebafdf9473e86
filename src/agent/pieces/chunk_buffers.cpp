#include "agent/pieces/chunk_buffers.hpp"

#include <cstring>
#include <new>
#include <utility>

namespace ckpt::agent {

namespace {
constexpr std::align_val_t alignment{4096};
}  // namespace

ChunkBuffers::~ChunkBuffers() {
  for (const Buffer buffer : free_) ::operator delete(buffer, alignment);
}

void ChunkBuffers::ask(std::size_t wanted, OnGranted grant) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({wanted, std::move(grant)});
  }
  serve();
}

void ChunkBuffers::give_back(std::vector<Buffer> buffers) {
  {
    const std::lock_guard lock(mutex_);
    free_.insert(free_.end(), buffers.begin(), buffers.end());
  }
  serve();
}

void ChunkBuffers::serve() {
  for (;;) {
    Request next;
    std::vector<Buffer> granted;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) return;
      const std::size_t wanted = waiting_.front().wanted;
      if (free_.size() + (count - made_) < wanted) return;
      for (; free_.size() < wanted; ++made_) {
        free_.push_back(static_cast<Buffer>(::operator new(size_bytes, alignment)));
        std::memset(free_.back(), 0, size_bytes);
      }
      granted.assign(free_.end() - static_cast<std::ptrdiff_t>(wanted), free_.end());
      free_.resize(free_.size() - wanted);
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    next.grant(std::move(granted));
  }
}

}  // namespace ckpt::agent
