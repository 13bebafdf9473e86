// GEMINI's theorem 1, by search. A placement's odds depend on its distinct holder sets only, and every further set can
// only lower them. So the best odds are those of a minimal cover: sets of m nodes that together contain all nodes, each
// of them some node that no other one does. Up to relabelling of nodes, such a cover is how many nodes lie in exactly
// which of the sets; these are enumerated, instead of all C(N, m)^N maps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "placement/odds/bounds.hpp"
#include "placement/odds/survival.hpp"
#include "tests/placement/support.hpp"

namespace ckpt::placement {
namespace {

using Sets = std::vector<std::uint32_t>;  // of nodes, as bit masks

class Covers {
 public:
  Covers(std::uint32_t nodes, std::uint32_t set_size) : nodes_(nodes), set_size_(set_size) {}

  template <typename Visit>
  void each(const Visit& visit) {
    for (std::uint32_t count = (nodes_ + set_size_ - 1) / set_size_; count <= nodes_ - set_size_ + 1; ++count) {
      memberships_.clear();
      for (std::uint32_t set = 0; set < count; ++set) memberships_.push_back(1u << set);  // each set's own node
      extend(count, 1, visit);
    }
  }

 private:
  // Adds the other nodes, in the order of the sets they are in.
  template <typename Visit>
  void extend(std::uint32_t count, std::uint32_t from, const Visit& visit) {
    for (std::uint32_t set = 0; set < count; ++set) {
      if (members(set) > set_size_) return;
    }
    if (memberships_.size() == nodes_) {
      Sets sets(count, 0);
      for (std::uint32_t node = 0; node < nodes_; ++node) {
        for (std::uint32_t set = 0; set < count; ++set) {
          if (memberships_[node] >> set & 1) sets[set] |= 1u << node;
        }
      }
      const bool full = std::all_of(sets.begin(), sets.end(),
                                    [&](std::uint32_t set) { return std::popcount(set) == int(set_size_); });
      if (full) visit(sets);
      return;
    }
    for (std::uint32_t membership = from; membership < (1u << count); ++membership) {
      memberships_.push_back(membership);
      extend(count, membership, visit);
      memberships_.pop_back();
    }
  }

  std::uint32_t members(std::uint32_t set) const {
    std::uint32_t count = 0;
    for (const auto membership : memberships_) count += membership >> set & 1;
    return count;
  }

  std::uint32_t nodes_;
  std::uint32_t set_size_;
  std::vector<std::uint32_t> memberships_;  // of each node, the sets it is in
};

// For every number of lost nodes, the most sets of them that any cover survives.
std::vector<std::uint64_t> best_survivors(std::uint32_t nodes, std::uint32_t copies) {
  std::vector<std::uint64_t> best(nodes + 1, 0);
  Covers(nodes, copies).each([&](const Sets& sets) {
    std::vector<std::uint64_t> survivors(nodes + 1, 0);
    for (std::uint32_t lost = 0; lost < (1u << nodes); ++lost) {
      survivors[static_cast<std::size_t>(std::popcount(lost))] += contains_a_set(lost, sets) ? 0 : 1;
    }
    for (std::uint32_t lost = 0; lost <= nodes; ++lost) best[lost] = std::max(best[lost], survivors[lost]);
  });
  return best;
}

std::uint64_t survivors(Strategy strategy, std::uint32_t nodes, std::uint32_t copies, std::uint32_t lost) {
  return survival_odds(Pattern(strategy, nodes, copies), lost).count->survivors;
}

template <typename Check>
void for_small_sizes(const Check& check) {
  for (std::uint32_t nodes = 2; nodes <= 9; ++nodes) {
    for (std::uint32_t copies = 2; copies <= std::min(nodes, 3u); ++copies) {
      SCOPED_TRACE(std::to_string(nodes) + " nodes, " + std::to_string(copies) + " copies");
      check(nodes, copies);
    }
  }
}

// The enumeration against the plain one, where that is possible: all maps of N = 4 or 5 nodes.
TEST(Theorem1, SearchMatchesTryingAllMaps) {
  for (const auto& [nodes, copies] : {std::pair{4u, 2u}, std::pair{5u, 2u}, std::pair{5u, 3u}}) {
    Sets all;
    each_subset(nodes, copies, [&](std::uint32_t set) { all.push_back(set); });
    std::vector<std::uint64_t> best(nodes + 1, 0);
    std::vector<std::size_t> choice(nodes, 0);
    while (true) {
      Sets sets;
      for (std::uint32_t node = 0; node < nodes; ++node) {
        if (all[choice[node]] >> node & 1) sets.push_back(all[choice[node]]);
      }
      if (sets.size() == nodes) {  // every node holds its own shard
        for (std::uint32_t lost = 0; lost <= nodes; ++lost) {
          best[lost] = std::max(best[lost], survivors_by_exhaustion(nodes, lost, sets));
        }
      }
      std::size_t digit = 0;
      while (digit < nodes && ++choice[digit] == all.size()) choice[digit++] = 0;
      if (digit == nodes) break;
    }
    EXPECT_EQ(best_survivors(nodes, copies), best) << nodes << " nodes, " << copies << " copies";
  }
}

TEST(Theorem1, NoPlacementBeatsGroupsForAsManyLossesAsCopies) {
  for_small_sizes([](std::uint32_t nodes, std::uint32_t copies) {
    if (nodes % copies != 0) return;
    EXPECT_EQ(best_survivors(nodes, copies)[copies], survivors(Strategy::group, nodes, copies, copies));
  });
}

TEST(Theorem1, MixedStaysWithinItsGapAndCoverIsOptimal) {
  for_small_sizes([](std::uint32_t nodes, std::uint32_t copies) {
    if (nodes % copies == 0) return;
    const double all = std::round(std::exp(log_choose(nodes, copies)));
    const std::uint64_t best = best_survivors(nodes, copies)[copies];
    EXPECT_NEAR(double(best) / all, best_possible(nodes, copies), 1e-12);
    const std::uint64_t mixed = survivors(Strategy::mixed, nodes, copies, copies);
    EXPECT_GE(mixed + 2 * copies - 3, best);
    EXPECT_GE(double(mixed) / all, best_possible(nodes, copies) - largest_gap_of_mixed(nodes, copies) - 1e-12);
    EXPECT_EQ(survivors(Strategy::cover, nodes, copies, copies), best);
  });
}

// Some gap must be as large as the theorem allows, or it would say too little to be worth testing.
TEST(Theorem1, GapOfMixedIsAttained) {
  EXPECT_EQ(best_survivors(5, 3)[3] - survivors(Strategy::mixed, 5, 3, 3), 2u * 3 - 3);
}

TEST(Theorem1, DoesNotHoldForMoreLossesThanCopies) {
  // A star: everyone's copy is on node 0. Of three lost nodes, the three others may be the ones.
  const Sets star{0b0011, 0b0101, 0b1001};
  EXPECT_EQ(survivors_by_exhaustion(4, 3, star), 1u);  // of 4
  EXPECT_EQ(survivors(Strategy::group, 4, 2, 3), 0u);
  EXPECT_EQ(survivors_by_exhaustion(4, 2, star), 3u);  // of 6, where groups survive
  EXPECT_EQ(survivors(Strategy::group, 4, 2, 2), 4u);

  // With 16 nodes a star survives three losses unless node 0 and another one are among them: C(15, 3) of C(16, 3).
  Sets large_star;
  for (std::uint32_t node = 1; node < 16; ++node) large_star.push_back(1u | 1u << node);
  EXPECT_EQ(survivors_by_exhaustion(16, 3, large_star), 455u);
  EXPECT_EQ(survivors(Strategy::group, 16, 2, 3), 448u);
}

// Where, for m dividing N, some other placement is better than groups. docs/protection.md says that this needs more
// than m lost nodes.
TEST(Theorem1, FailsForMoreLossesExactlyInTheKnownCases) {
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::set<std::uint32_t>> turns;  // (N, m) -> k
  for_small_sizes([&](std::uint32_t nodes, std::uint32_t copies) {
    if (nodes % copies != 0) return;
    const auto best = best_survivors(nodes, copies);
    for (std::uint32_t lost = 0; lost <= nodes; ++lost) {
      if (best[lost] > survivors(Strategy::group, nodes, copies, lost)) turns[{nodes, copies}].insert(lost);
    }
  });
  const decltype(turns) expected{
      {{4, 2}, {3}}, {{6, 2}, {3, 4, 5}}, {{6, 3}, {5}}, {{8, 2}, {3, 4, 5, 6, 7}}, {{9, 3}, {5, 6, 7, 8}}};
  EXPECT_EQ(turns, expected);
}

// What the fewest sets cost: a node in both overlapping ones stores N mod m shards more, and no map with as few sets
// that keeps every node's shard on the node itself does with less.
TEST(Cover, StoresTheLeastThatTheFewestSetsAllow) {
  for_small_sizes([](std::uint32_t nodes, std::uint32_t copies) {
    std::uint32_t least = nodes;
    const std::uint32_t fewest = (nodes + copies - 1) / copies;
    Covers(nodes, copies).each([&](const Sets& sets) {
      if (sets.size() != fewest) return;
      // Each node picks one of the sets it is in; the count of picks is what the nodes of a set store for it.
      std::vector<std::uint32_t> picks(fewest, 0);
      const std::function<void(std::uint32_t)> pick = [&](std::uint32_t node) {
        if (node == nodes) {
          std::uint32_t most = 0;
          for (std::uint32_t holder = 0; holder < nodes; ++holder) {
            std::uint32_t stored = 0;
            for (std::uint32_t set = 0; set < fewest; ++set) stored += (sets[set] >> holder & 1) * picks[set];
            most = std::max(most, stored);
          }
          least = std::min(least, most);
          return;
        }
        for (std::uint32_t set = 0; set < fewest; ++set) {
          if ((sets[set] >> node & 1) == 0) continue;
          ++picks[set];
          pick(node + 1);
          --picks[set];
        }
      };
      pick(0);
    });
    const Placement cover = place({.strategy = Strategy::cover, .nodes = nodes, .copies = copies});
    EXPECT_EQ(cover.largest_load().stored, least);
    EXPECT_EQ(least, copies + nodes % copies);
  });
}

}  // namespace
}  // namespace ckpt::placement
