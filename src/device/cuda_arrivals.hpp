// CudaArrivals tells when the copies of chunks that were enqueued on a stream have arrived on the host, one after the
// other, and how long the GPU has copied.
//
// Use it with the context current. Throws Failure.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "device/cuda_handles.hpp"

namespace ckpt::device {

class CudaArrivals {
 public:
  // The copies of a chunk will be enqueued on `stream` now; `enqueued`: they are.
  void begin(CUstream stream) {
    if (spare_.empty()) spare_.emplace_back();
    spare_.back().begin.record(stream);
  }
  void enqueued(CUstream stream, std::size_t leaves) {
    spare_.back().end.record(stream);
    spare_.back().leaves = leaves;
    under_way_.push_back(std::move(spare_.back()));
    spare_.pop_back();
    leaves_under_way_ += leaves;
  }

  struct Arrived {
    std::size_t leaves = 0;
    double copied_s = 0;  // how long the GPU has copied
  };
  // Returns the oldest chunk, if it has arrived since.
  std::optional<Arrived> take() {
    if (under_way_.empty() || !under_way_.front().end.reached()) return std::nullopt;
    const Chunk& chunk = under_way_.front();
    const Arrived arrived{chunk.leaves, 1e-3 * static_cast<double>(chunk.begin.ms_until(chunk.end))};
    drop_oldest();
    return arrived;
  }
  // Chunks under way count no more.
  void forget() {
    while (!under_way_.empty()) drop_oldest();
  }
  std::size_t leaves_under_way() const { return leaves_under_way_; }

 private:
  struct Chunk {
    Event begin{Event::Time::with}, end{Event::Time::with};
    std::size_t leaves = 0;
  };
  void drop_oldest() {
    leaves_under_way_ -= under_way_.front().leaves;
    spare_.push_back(std::move(under_way_.front()));
    under_way_.pop_front();
  }

  std::deque<Chunk> under_way_;
  std::vector<Chunk> spare_;
  std::size_t leaves_under_way_ = 0;
};

}  // namespace ckpt::device
