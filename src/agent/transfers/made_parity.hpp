// MadeParity is the interface of parity that another part of the node makes, leaf by leaf, while a CodingJob waits: a
// rank's GPU (docs/gpu.md). The job believes nothing of it. It compares each leaf with the digests that this object
// names for it, and the digests of what the leaf was made from with the manifests of the shards.
//
// Any thread may call the functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ckpt::agent {

class MadeParity {
 public:
  // What the maker says of a leaf.
  struct Leaf {
    std::vector<std::uint64_t> sources;  // by data column: the digest of the leaf that was added
    std::uint64_t digest = 0;            // of the parity leaf
  };

  virtual ~MadeParity() = default;
  // How many leaves of the parity piece are made, from the first one on.
  virtual std::size_t leaves() const = 0;
  // Copies leaf number `leaf`, which must be made, to `to`. Its bytes may be anything.
  virtual Leaf copy(std::size_t leaf, std::byte* to) const = 0;
};

}  // namespace ckpt::agent
