// Where tensors live, and how their bytes get into a slot and back. One interface for host memory and, later, CUDA.
//
// A device belongs to one engine and is used by one thread, the training thread. Nothing throws but the constructors
// and plan(). While a started copy runs, plan, tensors and destination belong to the device: until finish() has
// returned true or cancel() has returned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "ckptengine/ckptengine.h"
#include "kernels/copy_digest.hpp"

namespace ckpt::device {

// The tensors of one shard in the order of its layout. Made once per layout, used every iteration. Immutable.
class Plan {
 public:
  using Region = kernels::Target;  // of a tensor; null only where its size is 0
  explicit Plan(std::vector<Region> regions);

  // Of `size_bytes` of the packed bytes from `first_byte` on.
  Plan slice(std::uint64_t first_byte, std::uint64_t size_bytes) const;

  const std::vector<kernels::Source>& sources() const { return sources_; }
  const std::vector<kernels::Target>& targets() const { return targets_; }
  const std::vector<std::size_t>& offsets() const { return offsets_; }
  std::size_t length_bytes() const { return offsets_.back(); }
  std::size_t leaves() const { return kernels::leaf_count(length_bytes()); }

 private:
  std::vector<kernels::Source> sources_;
  std::vector<kernels::Target> targets_;
  std::vector<std::size_t> offsets_;
};

// As many as start() takes.
inline constexpr std::size_t plans_max = 8;

// A piece in host memory, 64-byte aligned, and the digests of its leaves.
struct Packed {
  std::byte* data;
  std::uint64_t* digests;
};
struct ConstPacked {
  const std::byte* data;
  const std::uint64_t* digests;
};

class Device {
 public:
  virtual ~Device() = default;

  // Whether tensors in this kind of memory can be registered.
  virtual bool reaches(ckpt_memory memory) const = 0;

  // Copies and digests before it returns (CUDA: before anything later on the caller's stream).
  virtual void capture(const Plan& plan, Packed to) = 0;

  // Starts to copy and digest up to plans_max pieces, and returns. One start() at a time.
  struct Copy {
    const Plan* plan = nullptr;
    Packed to{};
  };
  virtual void start(std::span<const Copy> copies) = 0;
  // Waits until the started copy is whole; false when the deadline passed first. True when none was started.
  virtual bool finish(Deadline deadline) = 0;
  // Gives the started copy up. When it returns, nothing reads the tensors or writes the destination any more.
  virtual void cancel() = 0;

  // Copies a piece back into the tensors, each leaf verified first. Returns the number of a leaf that does not match,
  // and then leaves the tensors undefined.
  virtual std::optional<std::size_t> load(const Plan& plan, ConstPacked from) = 0;
};

}  // namespace ckpt::device
