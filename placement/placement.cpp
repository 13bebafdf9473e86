#include "placement/placement.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace ckpt::placement {
namespace {

using std::to_string;

void check_permutation(const std::vector<std::uint32_t>& order, std::uint32_t nodes) {
  if (order.size() != nodes) {
    throw std::invalid_argument("the given order of nodes has " + to_string(order.size()) +
                                " nodes, but the placement has " + to_string(nodes));
  }
  std::vector<bool> seen(nodes, false);
  for (const auto node : order) {
    const auto refuse = [&](const std::string& why) {
      throw std::invalid_argument("the given order of nodes has node " + to_string(node) + why);
    };
    if (node >= nodes) refuse(", but nodes are numbered from 0 to " + to_string(nodes - 1));
    if (seen[node]) refuse(" twice");
    seen[node] = true;
  }
}

template <typename Choose>
Load fold_loads(const Placement& placement, Choose choose) {
  Load result = placement.load(0);
  for (std::uint32_t node = 1; node < placement.nodes(); ++node) {
    const Load load = placement.load(node);
    result = {choose(result.captured, load.captured), choose(result.sent, load.sent),
              choose(result.received, load.received), choose(result.stored, load.stored)};
  }
  return result;
}

}  // namespace

ByteRange bytes_of(Range range, std::uint64_t shard_bytes, std::uint64_t unit_bytes) {
  const std::uint64_t units = shard_bytes / unit_bytes + (shard_bytes % unit_bytes != 0);
  // The first `units % of` ranges are one unit longer than the others. The formula does not overflow for any size.
  const auto start = [&](std::uint64_t index) {
    const std::uint64_t unit = units / range.of * index + std::min(units % range.of, index);
    return unit == units ? shard_bytes : unit * unit_bytes;
  };
  const std::uint64_t first = start(range.index);
  return {first, start(std::uint64_t{range.index} + 1) - first};
}

std::span<const std::uint32_t> Placement::holders(std::uint32_t home) const {
  const std::size_t each = pattern_.holders_per_part();
  return {holders_.data() + home * each, each};
}

std::span<const std::uint32_t> Placement::stored_by(std::uint32_t node) const {
  return {stored_.data() + stored_starts_[node], stored_starts_[node + 1] - stored_starts_[node]};
}

std::span<const std::uint32_t> Placement::owners(std::uint32_t shard) const {
  return {owners_.data() + shard_starts_[shard], shard_starts_[shard + 1] - shard_starts_[shard]};
}

std::vector<std::uint32_t> Placement::shard_holders(std::uint32_t shard) const {
  if (!is_sharded(pattern_.strategy())) {
    const auto all = holders(owners(shard).front());
    return {all.begin(), all.end()};
  }
  const auto all = owners(shard);  // the parts of a shard never leave its owners
  return {all.begin(), all.end()};
}

std::vector<Transfer> Placement::transfers() const {
  std::vector<Transfer> transfers;
  if (is_sharded(pattern_.strategy())) return transfers;
  transfers.reserve(holders_.size() - nodes());
  for (std::uint32_t home = 0; home < nodes(); ++home) {
    for (const auto holder : holders(home).subspan(1)) transfers.push_back({home, home, holder});
  }
  return transfers;
}

Load Placement::load(std::uint32_t node) const {
  Load load;
  const auto parts = stored_by(node);
  for (const auto home : parts) load.stored += 1.0 / parts_[home].range.of;
  if (is_sharded(pattern_.strategy())) {
    load.captured = load.stored;
  } else {
    load.captured = 1;
    load.sent = pattern_.holders_per_part() - 1;
    load.received = static_cast<double>(parts.size()) - 1;
  }
  return load;
}

Load Placement::largest_load() const {
  return fold_loads(*this, [](double a, double b) { return std::max(a, b); });
}

Load Placement::smallest_load() const {
  return fold_loads(*this, [](double a, double b) { return std::min(a, b); });
}

void Placement::fill_parts() {
  const std::size_t each = pattern_.holders_per_part();
  parts_.resize(nodes());
  holders_.resize(nodes() * each);
  owners_.reserve(nodes());
  if (!is_sharded(pattern_.strategy())) {
    for (std::uint32_t node = 0; node < nodes(); ++node) {
      parts_[node] = {node, {}};
      owners_.push_back(node);
      shard_starts_.push_back(node + 1);
    }
  }
  for (std::uint32_t position = 0; position < nodes(); ++position) {
    const std::uint32_t home = order_[position];
    const auto positions = pattern_.holders(position);
    for (std::size_t i = 0; i < each; ++i) holders_[home * each + i] = order_[positions[i]];
    if (!is_sharded(pattern_.strategy())) continue;
    const auto [cell, first, kind] = pattern_.place_of(position);
    parts_[home] = {cell, {position - first, kind->size}};
    owners_.push_back(home);
    if (position + 1 == first + kind->size) shard_starts_.push_back(position + 1);
  }
}

void Placement::fill_stored() {
  const std::size_t each = pattern_.holders_per_part();
  stored_starts_.assign(nodes() + 1, 0);
  for (const auto holder : holders_) ++stored_starts_[holder + 1];
  std::partial_sum(stored_starts_.begin(), stored_starts_.end(), stored_starts_.begin());
  stored_.resize(holders_.size());
  std::vector<std::uint32_t> next(stored_starts_.begin(), stored_starts_.end() - 1);
  for (std::size_t copy = 0; copy < each; ++copy) {
    for (std::uint32_t home = 0; home < nodes(); ++home) stored_[next[holders_[home * each + copy]]++] = home;
  }
}

Placement place(const Request& request) {
  Placement placement(Pattern(request.strategy, request.nodes, request.copies));
  if (std::uint64_t{request.nodes} * placement.pattern().holders_per_part() > INT32_MAX) {
    throw std::invalid_argument(to_string(request.copies) + " copies for each of " + to_string(request.nodes) +
                                " nodes are more than a placement can hold (2^31): ask for fewer copies");
  }
  if (request.domains != nullptr && request.domains->nodes() != request.nodes) {
    throw std::invalid_argument("failure domains are given for " + to_string(request.domains->nodes()) +
                                " nodes, but the placement has " + to_string(request.nodes));
  }
  if (!request.order.empty()) {
    check_permutation(request.order, request.nodes);
    placement.order_ = request.order;
  } else if (request.domains != nullptr) {
    placement.order_ = arrange(placement.pattern_, *request.domains);
  } else {
    placement.order_.resize(request.nodes);
    std::iota(placement.order_.begin(), placement.order_.end(), 0);
  }
  placement.fill_parts();
  placement.fill_stored();
  if (request.domains != nullptr) {
    placement.unseparated_ = unseparated(placement.pattern_, placement.order_, *request.domains);
  }
  return placement;
}

}  // namespace ckpt::placement
