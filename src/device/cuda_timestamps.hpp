// CudaTimestamps finds out when one GPU reaches points on its streams. At each point it enqueues an event, which keeps
// the time, and the write of a word. A process that reads the word learns without a CUDA call that the GPU has got
// there. The caller says to which track each point belongs: a track is a list of points that the GPU reaches in the
// order in which they were added. So a thread of this object queries only the oldest pending event of each track.
//
// To convert the GPU's times to the host's, it records an event whose host time it knows: an anchor. The event is on an
// idle stream, so the host time is known to a fraction of a millisecond. CUDA gives differences as float milliseconds,
// which lose digits as they grow. So the thread tries for a new anchor every second.
//
// If it is destroyed before the GPU has reached every point, memory that the GPU may still write is never freed. The
// destructor does not wait for the GPU, because a collective whose peer has died never ends.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "device/cuda_handles.hpp"
#include "device/device.hpp"

namespace ckpt::device {

class CudaTimestamps : public StreamTimestamps {
 public:
  // `words` has the words that points write. The constructor lets the GPU write the first word's own value, to find out
  // whether it can. So that word must not be in use yet. Throws Failure if the GPU cannot write it or does not answer,
  // or if a call of the driver fails.
  CudaTimestamps(int ordinal, Range words, std::shared_ptr<void> owner, Reached reached);
  ~CudaTimestamps() override;
  CudaTimestamps(const CudaTimestamps&) = delete;
  CudaTimestamps& operator=(const CudaTimestamps&) = delete;

  bool add(Stream stream, const Point& point) override;

 private:
  // The memory and streams that the GPU works with. If the GPU may still write to them, they are never freed.
  struct Resources {
    Resources(const Range& range, std::shared_ptr<void> words_owner);
    std::shared_ptr<void> owner;
    Registration words;
    BackgroundStream stream;  // of anchors
    Event anchor{Event::Time::with}, next_anchor{Event::Time::with};
    std::array<std::deque<Event>, tracks_max> pending;
    std::vector<Event> spare;
  };
  struct Reading {
    Clock::time_point at;
    std::uint32_t track;
  };
  using Lock = std::unique_lock<std::mutex>;

  static void keep_for_good(std::unique_ptr<Resources> resources);
  CUdeviceptr device_address(const void* word) const;
  void write(CUstream stream, const Point& point) const;
  bool drop_anchor(std::chrono::microseconds limit);
  Clock::time_point time_of(const Event& event) const;
  bool idle() const;
  void collect();
  void notify(Clock::time_point until);
  void look(bool is_last);
  void run();

  const Context context_;
  const Range range_;
  const Reached reached_;
  CUdeviceptr words_on_device_ = 0;

  // Only the thread uses these.
  std::vector<Reading> readings_;
  Clock::time_point anchored_at_, anchor_again_at_;

  std::mutex mutex_;  // for all below except the anchors
  std::condition_variable changed_;
  std::unique_ptr<Resources> resources_;
  bool dead_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ckpt::device
