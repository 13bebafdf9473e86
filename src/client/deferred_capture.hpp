// DeferredCapture is a snapshot that waits for a slot. The training thread offers it. Whichever thread then sees the
// agent's grant begins the capture, once. The training thread takes the snapshot back before the tensors change.
//
// It keeps the private shard as it was in the snapshot() call, because that shard's tensors may change at once. Takes
// no lock, and allocates only if the private shard has grown.
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
    bool is_own_only = false;  // only the private shard is kept; the main shard may follow late
  };

  // Training thread. True if the private shard is small enough to be kept.
  static bool fits(const RankState& state);
  // Training thread. Keeps the private shard. `snapshot.state` must not change until take_back().
  void offer(const Snapshot& snapshot);
  // Training thread. True from offer() to take_back().
  bool is_open() const { return phase_.load() != none; }
  // Training thread. Ends the offer, and waits for a thread that is about to begin. Returns true if nobody has begun:
  // then nobody will. Otherwise, and without an offer, the capture is the training thread's again.
  bool take_back();

  // Any thread. True if the capture has not begun, and may still begin.
  bool waits() const {
    const std::uint32_t phase = phase_.load();
    return phase != none && phase != begun;
  }
  // Any thread. Calls `begin` if the snapshot waits and no other thread is about to begin it. What `begin` uses is its
  // alone during the call. It returns false if there is no slot yet, and must not throw.
  template <class Begin>
  void try_begin(Begin begin) {
    if (claim()) unclaim(begin());
  }
  // For `begin`.
  const Snapshot& snapshot() const { return snapshot_; }
  const device::Plan& private_plan() const { return private_plan_; }

 private:
  // none -> waiting -> claimed -> begun -> none. From claimed also back to waiting, and from waiting to none.
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
