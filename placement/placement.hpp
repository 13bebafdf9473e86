// Placement says which node stores which part of which shard, and which part each node sends to which other node. A
// part is one of several equal byte ranges of a shard. Each node captures exactly one part and is the home of this
// part. A part's number is the number of its home.
//
// With a replicating strategy, shard n belongs to node n and has one part, the whole shard. With a sharded strategy,
// the nodes of a cell (pattern.hpp) have the same shard on their devices, and each captures one part of it.
//
// Pure functions. A Placement never changes, so threads may share it. It takes O(nodes * copies) memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "placement/arrange.hpp"
#include "placement/domains.hpp"
#include "placement/pattern.hpp"

namespace ckpt::placement {

// One of the `of` equal ranges into which a shard is divided: number `index`, counted from 0.
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
// The bytes of a range. Ranges are cut at multiples of `unit_bytes` (a digest leaf, for example). The ranges of a shard
// cover all of it without gaps. Their sizes differ by at most one unit, if the shard's last unit counts as whole.
ByteRange bytes_of(Range range, std::uint64_t shard_bytes, std::uint64_t unit_bytes);

struct Part {
  std::uint32_t shard = 0;
  Range range;
  bool operator==(const Part&) const = default;
};

struct Transfer {
  std::uint32_t part = 0;  // the number of its home
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  bool operator==(const Transfer&) const = default;
};

// What one node stores and sends for a checkpoint. The unit is one whole shard.
struct Load {
  double captured = 0;  // copied from the node's own devices
  double sent = 0;
  double received = 0;
  double stored = 0;
};

struct Request {
  Strategy strategy = Strategy::group;
  std::uint32_t nodes = 0;
  std::uint32_t copies = 2;          // m of Strategy (pattern.hpp)
  const Domains* domains = nullptr;  // borrowed during the call; null: no failure domains
  // If not empty: the order to keep, which is order() of an earlier placement. Then no part moves to another node
  // number (a node that replaces another one takes its number), and `domains` do not change the order. unseparated()
  // still lists the pairs that share a domain.
  std::vector<std::uint32_t> order = {};
};

class Placement {
 public:
  const Pattern& pattern() const { return pattern_; }
  std::uint32_t nodes() const { return pattern_.nodes(); }
  std::uint32_t shards() const { return static_cast<std::uint32_t>(shard_starts_.size() - 1); }
  const std::vector<std::uint32_t>& order() const { return order_; }  // order()[position] = node

  Part part(std::uint32_t home) const { return parts_[home]; }
  std::span<const std::uint32_t> holders(std::uint32_t home) const;    // nodes that store the part, its home first
  std::span<const std::uint32_t> stored_by(std::uint32_t node) const;  // parts that the node stores, its own first

  // The nodes that have the shard on their devices. Each is the home of one part of the shard. They are in the order of
  // the parts' ranges.
  std::span<const std::uint32_t> owners(std::uint32_t shard) const;
  // All nodes that store some part of the shard. The first one is an owner.
  std::vector<std::uint32_t> shard_holders(std::uint32_t shard) const;

  // The transfers for one checkpoint. Empty if every node that stores a part of a shard also has that shard on its
  // devices.
  std::vector<Transfer> transfers() const;
  Load load(std::uint32_t node) const;
  // The largest and the smallest value of each field of Load over all nodes. The fields may come from different nodes.
  Load largest_load() const;
  Load smallest_load() const;

  // Pairs of nodes that hold the same part and share a failure domain. Empty without domains.
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
  std::vector<std::uint32_t> stored_;           // the parts of all nodes, node by node
  std::vector<std::uint32_t> stored_starts_;    // [node]: where its parts begin in stored_
  std::vector<std::uint32_t> owners_;           // the owners of all shards, shard by shard
  std::vector<std::uint32_t> shard_starts_{0};  // [shard]: where its owners begin in owners_
  std::vector<Unseparated> unseparated_;
};

// Makes the placement of a job. Throws std::invalid_argument if the request cannot be met. Takes O(nodes * copies) time
// and memory; with domains also O(nodes log nodes) time.
Placement place(const Request& request);

}  // namespace ckpt::placement
