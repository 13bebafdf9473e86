// CudaPinning pins the ranges of host memory to which captures go, and keeps them pinned. It also keeps each range
// mapped until the range is unpinned. Besides, it frees other memory that nothing uses any more.
//
// Pinning takes seconds for a large slot, and unpinning and freeing wait for the GPU. So a thread of this object does
// all three. It pins at most pin_max_bytes at a time, with a pause after each time, because the driver may hold its
// lock meanwhile. If the driver refuses to pin, the thread tries again, with growing pauses. Before it pins memory, it
// moves it to the NUMA node that is closest to the GPU.
//
// Thread-safe. No function waits for the driver. Only the destructor does: for the memory that is being pinned, and for
// the GPU.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "device/cuda_handles.hpp"
#include "device/device.hpp"

namespace ckpt::device {

class CudaPinning {
 public:
  struct Retries {
    std::int64_t first_pause_ms = 100;  // doubles each time
    std::int64_t longest_pause_ms = 60'000;
    unsigned refusals_max = 20;  // so many refusals in a row, and the thread gives up
  };
  CudaPinning(const Context& context, const Retries& retries);
  ~CudaPinning();
  CudaPinning(const CudaPinning&) = delete;
  CudaPinning& operator=(const CudaPinning&) = delete;

  // Begins to pin these ranges, for a later use().
  void prepare(const std::vector<Range>& ranges, const Owner& owner);
  // From now on captures go to these ranges alone. Begins to pin those that are not pinned yet, and to unpin all
  // others.
  void use(const std::vector<Range>& ranges, const Owner& owner);
  void use_also(const Range& range, const Owner& owner);
  // Frees memory on this object's thread, which waits until the GPU no longer uses it.
  void free(RetiredMemory memory);

  // While `kept` is true, nothing is unpinned or freed, because the GPU may still use it. What is kept when this object
  // is destroyed is never freed.
  void keep_all(bool kept);

  // Waits until all ranges are pinned, or one was refused. Returns false if the deadline passes first.
  bool wait(Deadline deadline) const;
  // How far pinning has come, as a few words for people.
  std::string progress() const;
  // True if all of `part` is pinned, and lies in one range.
  bool covers(const Range& part) const;
  // Why the driver has refused to pin a range. Empty if it has refused none.
  std::string failure() const;
  // Returns a sentence when all ranges are pinned after the driver had refused one, and one when the kernel refuses to
  // move memory to the GPU's NUMA node. Each only once.
  std::optional<std::string> take_news();

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Pinned {
    Range range;
    Owner owner;
    std::size_t size_bytes = 0;  // from its beginning on, so much of the range is pinned
    std::vector<Registration> registrations;
  };
  using Ranges = std::vector<Pinned>;

  void run();
  bool has_garbage() const;
  bool is_given_up() const { return refusals_ >= retries_.refusals_max; }
  bool is_due() const;
  Pinned* unfinished();
  const Pinned* unfinished() const;
  void want(const Range& range, const Owner& owner, Ranges& known);
  void try_anew();
  void collect_garbage(Lock& lock);
  void pin_piece(Lock& lock);
  void pinned(const Range& range, const Owner& owner, Registration piece, std::size_t size_bytes);
  void refused(Lock& lock, std::uint64_t round, const std::string& why);
  void could_not_move(const std::string& why);

  const Context& context_;
  const Retries retries_;
  const int numa_node_;  // closest to the GPU; -1: any

  mutable std::mutex mutex_;  // for all below
  mutable std::condition_variable changed_;
  Ranges wanted_;
  Ranges unused_;                       // to be unpinned
  std::vector<RetiredMemory> retired_;  // to be freed. Few: memory is retired when larger memory replaces it
  bool is_kept_ = false, stop_ = false;
  std::uint64_t round_ = 0;  // grows when other ranges are wanted
  std::string refusal_;      // empty: not refused
  unsigned refusals_ = 0;
  std::int64_t pause_ms_ = 0;
  std::optional<Deadline> next_try_;  // nothing: at once
  bool was_refused_ = false;          // and nobody was told yet that all is pinned
  std::optional<std::string> news_, numa_news_;
  bool has_numa_notice_ = false;
  std::thread thread_;
};

}  // namespace ckpt::device
