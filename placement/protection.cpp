#include "placement/protection.hpp"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace ckpt::placement {

namespace {

// The chance that of `lost` among `nodes`, exactly `here` are in a given group.
double chance_of(std::uint32_t here, std::uint32_t members, std::uint32_t nodes, std::uint32_t lost) {
  if (here > members || here > lost || lost - here > nodes - members) return 0;
  double chance = 1;  // C(members, here) * C(nodes - members, lost - here) / C(nodes, lost), factor by factor
  for (std::uint32_t i = 0; i < here; ++i) {
    chance *= static_cast<double>(members - i) / (i + 1) * (lost - i) / (nodes - i);
  }
  const std::uint32_t spared = members - here;
  for (std::uint32_t i = 0; i < spared; ++i) {
    chance *= static_cast<double>(nodes - lost - i) / (nodes - here - i);
  }
  return chance;
}

}  // namespace

std::string name(const Protection& protection) {
  const std::string members = std::to_string(protection.members);
  if (!protection.parity) return "copies(" + members + ")";
  if (protection.tolerated == 1) return "xor(" + members + ")";
  return "rs(" + members + "," + std::to_string(protection.tolerated) + ")";
}

double extra_stored(const Protection& protection) {
  if (!protection.parity) return protection.tolerated;
  return static_cast<double>(protection.tolerated) / (protection.members - protection.tolerated);
}

double sent(const Protection& protection, Route route) {
  if (!protection.parity || route == Route::direct) return protection.tolerated;
  if (route == Route::local) return 0;
  return static_cast<double>(protection.members - 1) / (protection.members - protection.tolerated);
}

double recoverable(const Protection& protection, std::uint32_t nodes, std::uint32_t lost) {
  const std::uint32_t members = protection.members;
  if (members == 0 || nodes == 0 || nodes % members != 0 || lost > nodes) {
    throw std::invalid_argument("groups of " + std::to_string(members) + " must divide the " + std::to_string(nodes) +
                                " nodes, of which no more than all can be lost");
  }
  // odds[r]: that all groups so far survive, given that r of their nodes are lost.
  std::vector<double> odds(lost + 1, 0.0);
  odds[0] = 1;
  for (std::uint32_t so_far = members; so_far <= nodes; so_far += members) {
    std::vector<double> next(lost + 1, 0.0);
    for (std::uint32_t gone = 0; gone <= std::min(lost, so_far); ++gone) {
      for (std::uint32_t here = 0; here <= std::min(protection.tolerated, gone); ++here) {
        next[gone] += chance_of(here, members, so_far, gone) * odds[gone - here];
      }
    }
    odds = std::move(next);
  }
  return odds[lost];
}

}  // namespace ckpt::placement
