// CopyPace tells a device when to copy. The threads of a CopyPool call await_turn(); a GPU, whose copies are enqueued,
// calls may_enqueue(). Several threads may call at a time. The functions must not throw.
#pragma once

#include <cstddef>

#include "base/clock.hpp"

namespace ckpt::device {

class CopyPace {
 public:
  virtual ~CopyPace() = default;

  struct Turn {
    std::size_t leaves = 0;  // how many the thread may take, 1 or more
    unsigned layer = 0;      // goes back to copied()
  };
  // Waits until this thread may copy. `left`: leaves that no thread has taken, at least 1. Returns soon after hurry().
  virtual Turn await_turn(std::size_t left) = 0;

  // How far a capture on a GPU is, in leaves.
  struct Enqueued {
    std::size_t left = 0;              // not enqueued yet, at least 1
    std::size_t chunk = 0;             // how many are enqueued at a time
    std::size_t under_way = 0;         // enqueued, and not copied yet
    bool has_gpu_come_so_far = false;  // the GPU has done what training enqueued before the capture
  };
  // True if the next chunk may be enqueued now. Does not wait. Always true after hurry().
  virtual bool may_enqueue(const Enqueued& capture) = 0;
  // True if may_enqueue() puts chunks off, so that training may have to wait for the pace. `left` as in Enqueued.
  virtual bool holds_back(std::size_t left) = 0;
  // The layer of a chunk that the GPU begins to copy now. `is_awaited`: training waits for it.
  virtual unsigned layer_now(bool is_awaited) = 0;

  // `leaves` were copied in this time, in this layer.
  virtual void copied(unsigned layer, std::size_t leaves, Clock::time_point begin, Clock::time_point end) = 0;
  // Any thread. From now on await_turn() does not wait, until the next job begins.
  virtual void hurry() = 0;
};

}  // namespace ckpt::device
