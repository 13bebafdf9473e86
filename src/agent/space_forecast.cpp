#include "agent/space_forecast.hpp"

#include <algorithm>

#include "agent/trainers/trainer_manager.hpp"
#include "placement/parity_groups.hpp"

namespace ckpt::agent {
namespace {

// The smallest parity group; 0 rows if there is no parity.
placement::Protection smallest_group(const placement::Protection& protection, std::uint32_t nodes) {
  if (!protection.has_parity()) return {1, 1, 0};
  std::size_t members = nodes;
  for (const auto& group : placement::parity_groups(nodes, protection.members, protection.rows, nullptr).groups)
    members = std::min(members, group.size());
  const auto size = static_cast<std::uint32_t>(members);
  return {1, size, std::min(protection.rows, size - 1)};
}

}  // namespace

// Other copies-1 nodes hold what this node's ranks capture, so this node holds about as much for others. But parts that
// several ranks capture are not sent. Parity takes rows / (members - rows) of it, in the smallest of its groups.
std::uint64_t SpaceForecast::bytes_for_peers(std::uint64_t rank_bytes) const {
  if (peers_.all().empty()) return 0;
  std::uint64_t held = 0;
  for (const auto& [key, segment] : segments_.all())
    if (key.rank == core::held_rank) held += segment->size_bytes();
  const std::uint64_t node_bytes = rank_bytes * std::max<std::uint64_t>(trainers_.trainers().size(), 1);
  const auto group = smallest_group(protection_, static_cast<std::uint32_t>(peers_.all().size()) + 1);
  const std::uint64_t parity_bytes = node_bytes * group.rows / (group.members - group.rows);
  const std::uint64_t expected = (protection_.copies - 1) * node_bytes + parity_bytes;
  return expected > held ? expected - held : 0;
}

std::uint64_t SpaceForecast::bytes_to_come(std::uint64_t piece_bytes) const {
  const auto in_slots_of = [&](core::Rank rank) { return segments_.segment_bytes({rank, ""}, {piece_bytes, 0}); };
  const auto& all = segments_.all();
  std::uint64_t own_bytes = 0;
  for (const auto& [rank, trainer] : trainers_.trainers()) {
    const bool has_slots =
        std::any_of(all.begin(), all.end(), [rank = rank](const auto& entry) { return entry.first.rank == rank; });
    if (!has_slots) own_bytes += in_slots_of(rank);
  }
  return own_bytes + bytes_for_peers(in_slots_of(core::held_rank));
}

}  // namespace ckpt::agent
