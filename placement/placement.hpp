// Placement says which node stores which part of which shard, and which node sends what to which. A part is one of
// several equal byte ranges of a shard. Each node captures exactly one part, for which it is the home.
//
// With a replicating strategy, shard n belongs to node n and has one part, all of it. With a sharded strategy, the
// nodes of a cell have the same shard on their devices, and each captures one part of it.
//
// Pure functions. A Placement never changes and takes O(nodes * copies) memory; threads may share it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "placement/arrange.hpp"
#include "placement/domains.hpp"
#include "placement/pattern.hpp"

namespace ckpt::placement {

// The `index`-th of `of` equal ranges of a shard.
struct Range {
  std::uint32_t index = 0;
  std::uint32_t of = 1;
  bool operator==(const Range&) const = default;
};
struct ByteRange {
  std::uint64_t first_byte = 0;
  std::uint64_t size_bytes = 0;
  bool operator==(const ByteRange&) const = default;
};
// The range in bytes, cut at multiples of `unit_bytes` (digest leaves, for example). The ranges of a shard cover all of
// it without gaps. They differ by at most one unit, apart from the shard's last, shorter unit.
ByteRange bytes_of(Range range, std::uint64_t shard_bytes, std::uint64_t unit_bytes);

struct Part {
  std::uint32_t shard = 0;
  Range range;
  bool operator==(const Part&) const = default;
};

struct Transfer {
  std::uint32_t part = 0;  // named by its home node
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  bool operator==(const Transfer&) const = default;
};

// What one node stores and sends for a checkpoint, in shards.
struct Load {
  double captured = 0;  // copied from the node's own devices
  double sent = 0;
  double received = 0;
  double stored = 0;
};

struct Request {
  Strategy strategy = Strategy::group;
  std::uint32_t nodes = 0;
  std::uint32_t copies = 2;
  const Domains* domains = nullptr;  // borrowed during the call
  // The order of an earlier placement, to keep; a permutation of the nodes. A node that replaces another one takes over
  // its number, and nothing moves. Domains are then only reported, and the order ignores them.
  std::vector<std::uint32_t> order = {};
};

class Placement {
 public:
  const Pattern& pattern() const { return pattern_; }
  std::uint32_t nodes() const { return pattern_.nodes(); }
  std::uint32_t shards() const { return static_cast<std::uint32_t>(shard_starts_.size() - 1); }
  const std::vector<std::uint32_t>& order() const { return order_; }  // order()[position] = node

  // Parts are named by their home node.
  Part part(std::uint32_t home) const { return parts_[home]; }
  std::span<const std::uint32_t> holders(std::uint32_t home) const;    // the home first
  std::span<const std::uint32_t> stored_by(std::uint32_t node) const;  // parts, its own first

  // The nodes that have the shard on their devices. They are the homes of its parts, in the order of the ranges.
  std::span<const std::uint32_t> owners(std::uint32_t shard) const;
  // All nodes that store some of the shard, an owner first.
  std::vector<std::uint32_t> shard_holders(std::uint32_t shard) const;

  // The transfers for one checkpoint. Empty if all holders of a shard have it on their devices.
  std::vector<Transfer> transfers() const;
  Load load(std::uint32_t node) const;
  Load largest_load() const;  // each figure's largest over all nodes
  Load smallest_load() const;

  const std::vector<Unseparated>& unseparated() const { return unseparated_; }

 private:
  friend Placement place(const Request& request);
  explicit Placement(Pattern pattern) : pattern_(std::move(pattern)) {}
  void fill_parts();
  void fill_stored();

  Pattern pattern_;
  std::vector<std::uint32_t> order_;
  std::vector<Part> parts_;                     // [home]
  std::vector<std::uint32_t> holders_;          // [home * holders_per_part + i]
  std::vector<std::uint32_t> stored_;           // parts, by node
  std::vector<std::uint32_t> stored_starts_;    // into stored_
  std::vector<std::uint32_t> owners_;           // by shard
  std::vector<std::uint32_t> shard_starts_{0};  // into owners_
  std::vector<Unseparated> unseparated_;
};

// Places a job. Throws std::invalid_argument with one sentence if the request cannot be met. O(nodes * copies) time and
// memory; O(nodes log nodes) time with domains.
Placement place(const Request& request);

}  // namespace ckpt::placement
