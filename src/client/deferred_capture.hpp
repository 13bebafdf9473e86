// DeferredCapture is a snapshot that waits for a slot. The training thread offers it. The first thread that then sees
// the agent's grant begins the capture. The training thread takes the offer back before the tensors change.
//
// offer() copies the private shard, because the private tensors may change as soon as snapshot() returns.
// DeferredCapture takes no lock. It allocates only if the length of the private shard has changed.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/clock.hpp"
#include "client/tensor_registry.hpp"
#include "core/checkpoint_id.hpp"
#include "device/device.hpp"

namespace ckpt::client {

class DeferredCapture {
 public:
  struct Snapshot {
    CheckpointId checkpoint;
    const RankState* state = nullptr;
    Clock::time_point called_at;
    bool is_own_only = false;  // only the private shard is sealed; the main shard may follow in a late capture
  };

  // Training thread. True if the private shard is small enough to be copied by offer().
  static bool fits(const RankState& state);
  // Training thread. Copies the private shard, and lets any thread begin the capture. `snapshot.state` must not change
  // until take_back().
  void offer(const Snapshot& snapshot);
  // Training thread. True from offer() to take_back().
  bool is_open() const { return phase_.load() != none; }
  // Training thread. Ends the offer, and waits for a thread that is just beginning the capture. Returns true if no
  // thread has begun it; then none will. Returns false if one has begun it, or if there was no offer. In both cases
  // only the training thread may use the capture from now on.
  bool take_back();

  // Any thread. True if the capture has not begun, and may still begin.
  bool waits() const {
    const std::uint32_t phase = phase_.load();
    return phase != none && phase != begun;
  }
  // Any thread. Calls `begin` if the snapshot waits and no other thread is just beginning it. During the call, no other
  // thread uses the capture. `begin` returns false if there is no slot yet, and must not throw.
  template <class Begin>
  void try_begin(Begin begin) {
    if (claim()) unclaim(begin());
  }
  // For `begin`.
  const Snapshot& snapshot() const { return snapshot_; }
  const device::Plan& private_plan() const { return private_plan_; }

 private:
  // none -> waiting -> claimed -> begun -> none. From claimed also back to waiting, and from waiting to none.
  // `claimed`: a thread is just beginning the capture. `claimed_and_awaited`: take_back() waits for that thread.
  enum Phase : std::uint32_t { none, waiting, claimed, claimed_and_awaited, begun };
  bool claim();
  void unclaim(bool has_begun);
  void keep_private(const device::Plan& plan);

  // A Phase; futex of the training thread. Sequentially consistent: either the training thread sees the grant after its
  // offer, or the thread that was told of the grant sees the offer.
  std::atomic<std::uint32_t> phase_{none};
  Snapshot snapshot_;
  std::vector<std::byte> private_bytes_;
  device::Plan private_plan_{{}};
};

}  // namespace ckpt::client
