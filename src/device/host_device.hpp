// HostDevice captures and restores tensors in host memory, on threads that copy and digest in one pass.
#pragma once

#include <array>

#include "device/copy_pool.hpp"
#include "device/device.hpp"

namespace ckpt::device {

class HostDevice : public Device {
 public:
  // Keeps `copy_threads` threads, which sleep between copies.
  explicit HostDevice(unsigned copy_threads) : pool_(copy_threads) {}

  void reach(ckpt_memory memory, const void* data) override;
  void attach(const std::vector<Range>&, const Owner&) override {}
  void attach_also(const Range&, const Owner&) override {}
  bool broken() const override { return false; }
  std::string failure() const override { return {}; }
  void start(std::span<const Copy> overlapped, const Copy& synchronous, Stream stream) override;
  void pace(CopyPace* pace) override { pace_ = pace; }
  bool can_start_late() const override { return true; }
  void start_late(std::span<const Copy> overlapped) override;
  bool release(std::span<const Stream> streams, std::int64_t timeout_ms, Done done) override;
  void cancel() override { pool_.cancel(); }
  std::optional<std::size_t> load(const Plan& plan, ConstPacked from, Stream stream) override;
  bool loads_leaves() const override { return true; }
  std::optional<std::size_t> load_leaves(const Plan& plan, ConstPacked from, std::size_t first_leaf,
                                         std::size_t last_leaf) override;
  std::optional<std::size_t> verify(const Plan& plan, const std::uint64_t* digests, Stream stream) override;

 private:
  void copy_leaves(std::size_t first, std::size_t last) const;
  template <class FirstBad>
  std::optional<std::size_t> find_bad(std::size_t leaves, FirstBad first_bad);

  const Plan nothing_{{}};
  // The copies under way. Kept here so that the pool's function holds one pointer and needs no allocation.
  std::array<Copy, plans_max> copies_{};
  std::size_t copy_count_ = 0;
  CopyPace* pace_ = nullptr;
  CopyPool pool_;  // last: its threads end before what they use
};

}  // namespace ckpt::device
