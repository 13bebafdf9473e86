#include "placement/placement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "placement/odds/sampling.hpp"
#include "tests/placement/support.hpp"

namespace ckpt::placement {
namespace {

using Nodes = std::vector<std::uint32_t>;

Nodes holders(const Placement& placement, std::uint32_t home) {
  const auto all = placement.holders(home);
  return {all.begin(), all.end()};
}

struct Example {
  Request request;
  std::optional<Domains> domains;
};

// Random nodes, copies and, half of the time, domains of two levels.
Example random_example(Random& random) {
  Example example;
  example.request.strategy = all_strategies[random_below(random, std::size(all_strategies))];
  example.request.nodes = 1 + random_below(random, 60);
  example.request.copies = 1 + random_below(random, std::min(example.request.nodes, 6u));
  if (random_below(random, 2) == 0) {
    const std::uint32_t racks = 1 + random_below(random, example.request.nodes);
    std::string text;
    for (std::uint32_t node = 0; node < example.request.nodes; ++node) {
      text += std::to_string(node) + " rack" + std::to_string(random_below(random, racks)) + "\n";
    }
    for (std::uint32_t rack = 0; rack < racks; rack += 1 + random_below(random, 2)) {
      text += "rack" + std::to_string(rack) + " power" + std::to_string(rack % 4) + "\n";
    }
    example.domains = Domains::parse(text, example.request.nodes);
  }
  return example;
}

Placement place_example(Example& example) {
  example.request.domains = example.domains ? &*example.domains : nullptr;
  return place(example.request);
}

template <typename Check>
void for_random_placements(const Check& check) {
  Random random(20240330);
  for (int i = 0; i < 2000; ++i) {
    Example example = random_example(random);
    const Placement placement = place_example(example);
    SCOPED_TRACE(std::string(name(example.request.strategy)) + ", " + std::to_string(placement.nodes()) + " nodes, " +
                 std::to_string(example.request.copies) + " copies" + (example.domains ? ", domains" : ""));
    check(example, placement);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Placement, MatchesThePapersSmallExamples) {
  const Placement group = place({.strategy = Strategy::group, .nodes = 4, .copies = 2});  // GEMINI, figure 3a
  EXPECT_EQ(holders(group, 1), (Nodes{1, 0}));
  EXPECT_EQ(holders(group, 2), (Nodes{2, 3}));
  const Placement ring = place({.strategy = Strategy::ring, .nodes = 4, .copies = 2});  // 3b
  EXPECT_EQ(holders(ring, 1), (Nodes{1, 2}));
  EXPECT_EQ(holders(ring, 3), (Nodes{3, 0}));
  const Placement mixed = place({.strategy = Strategy::mixed, .nodes = 5, .copies = 2});  // 3c
  EXPECT_EQ(holders(mixed, 0), (Nodes{0, 1}));
  EXPECT_EQ(holders(mixed, 4), (Nodes{4, 2}));

  const Placement arc = place({.strategy = Strategy::sharded_copy, .nodes = 8, .copies = 4});  // REFT, figure 6
  EXPECT_EQ(arc.shards(), 2u);
  EXPECT_EQ(arc.part(6), (Part{1, {2, 4}}));
  EXPECT_EQ(holders(arc, 7), (Nodes{7, 4}));
  EXPECT_TRUE(arc.transfers().empty());
  EXPECT_DOUBLE_EQ(arc.load(6).captured, 0.5);                                                               // 2 W/m
  EXPECT_DOUBLE_EQ(place({.strategy = Strategy::sharded, .nodes = 8, .copies = 4}).load(6).captured, 0.25);  // W/m
}

TEST(Placement, ListsEachHolderOnceAndTheOwnNodeFirst) {
  for_random_placements([](const Example& example, const Placement& placement) {
    const bool sharded = is_sharded(example.request.strategy);
    std::vector<std::set<std::uint32_t>> ranges(placement.shards());
    for (std::uint32_t node = 0; node < placement.nodes(); ++node) {
      const Nodes nodes = holders(placement, node);
      EXPECT_EQ(nodes.front(), node);
      EXPECT_EQ(std::set(nodes.begin(), nodes.end()).size(), nodes.size());
      for (const auto holder : nodes) EXPECT_LT(holder, placement.nodes());
      EXPECT_EQ(nodes.size(), placement.pattern().holders_per_part());
      if (!sharded) {
        EXPECT_EQ(nodes.size(), example.request.copies);
      }
      ranges.at(placement.part(node).shard).insert(placement.part(node).range.index);
    }
    for (std::uint32_t shard = 0; shard < placement.shards(); ++shard) {
      const auto owners = placement.owners(shard);
      const Nodes nodes = placement.shard_holders(shard);
      EXPECT_GE(nodes.size(), example.request.copies);
      EXPECT_EQ(std::set(nodes.begin(), nodes.end()).size(), nodes.size());
      EXPECT_NE(std::find(owners.begin(), owners.end(), nodes.front()), owners.end());
      EXPECT_EQ(ranges[shard].size(), placement.part(owners.front()).range.of);  // all ranges of it have a home
      EXPECT_EQ(owners.size(), placement.part(owners.front()).range.of);
    }
  });
}

TEST(Placement, StoresAndSendsExactlyTheHeldParts) {
  for_random_placements([](const Example&, const Placement& placement) {
    std::set<std::pair<std::uint32_t, std::uint32_t>> held;  // part, node
    std::set<std::pair<std::uint32_t, std::uint32_t>> stored;
    std::set<std::pair<std::uint32_t, std::uint32_t>> arrived;
    for (std::uint32_t node = 0; node < placement.nodes(); ++node) {
      for (const auto holder : placement.holders(node)) held.emplace(node, holder);
      for (const auto part : placement.stored_by(node)) stored.emplace(part, node);
      EXPECT_EQ(placement.stored_by(node).front(), node);
      for (const auto part : placement.stored_by(node)) {
        const auto owners = placement.owners(placement.part(part).shard);
        if (std::find(owners.begin(), owners.end(), node) != owners.end()) arrived.emplace(part, node);
      }
    }
    EXPECT_EQ(held, stored);
    for (const auto& [part, from, to] : placement.transfers()) {
      EXPECT_EQ(from, part);  // whose device has it
      EXPECT_TRUE(arrived.emplace(part, to).second) << "node " << to << " gets what it has";
    }
    EXPECT_EQ(arrived, stored);
  });
}

TEST(Placement, BalancesTheLoad) {
  for_random_placements([](const Example& example, const Placement& placement) {
    const Load most = placement.largest_load();
    const Load least = placement.smallest_load();
    const std::uint32_t copies = example.request.copies;
    const std::uint32_t rest = placement.nodes() % copies;
    EXPECT_EQ(most.sent, least.sent);
    if (is_sharded(example.request.strategy)) {  // unequal only where cells are: parts of 1/m and of 1/(m + rest)
      const double parts = placement.pattern().holders_per_part();
      EXPECT_NEAR(most.stored, parts / (rest != 0 && placement.pattern().cells().size() == 1 ? copies + rest : copies),
                  1e-12);
      EXPECT_NEAR(least.stored, parts / (copies + rest), 1e-12);
      EXPECT_EQ(most.received, 0);
    } else if (example.request.strategy == Strategy::cover && rest != 0) {  // in both sets, or in the less used one
      EXPECT_EQ(most.stored, copies + rest);
      EXPECT_EQ(least.stored, (copies + rest) / 2);
    } else {
      EXPECT_EQ(most.stored, copies);
      EXPECT_EQ(least.stored, copies);
      EXPECT_EQ(most.received, copies - 1);
      EXPECT_EQ(least.received, copies - 1);
    }
  });
}

// A replacement takes over its predecessor's number, and may stand in another rack.
TEST(Placement, ReplacingANodeMovesNothingElse) {
  Random random(7);
  for (int i = 0; i < 300; ++i) {
    Request request{.strategy = all_strategies[random_below(random, std::size(all_strategies))], .nodes = 24};
    request.copies = 1 + random_below(random, 4);
    Nodes racks(request.nodes);
    for (auto& rack : racks) rack = random_below(random, 8);
    const Domains before = Domains::flat(racks);
    request.domains = &before;
    const Placement old_placement = place(request);

    racks[random_below(random, request.nodes)] = random_below(random, 8);
    const Domains after = Domains::flat(racks);
    request.domains = &after;
    request.order = old_placement.order();
    const Placement new_placement = place(request);
    for (std::uint32_t node = 0; node < request.nodes; ++node) {
      EXPECT_EQ(holders(new_placement, node), holders(old_placement, node));
      EXPECT_EQ(new_placement.part(node), old_placement.part(node));
    }
    EXPECT_EQ(new_placement.unseparated(), unseparated(new_placement.pattern(), request.order, after));
  }
}

TEST(Placement, DividesShardsIntoRangesWithoutGapOrOverlap) {
  for (const std::uint64_t shard_bytes : {0ull, 1ull, 999ull, 65536ull, 10'000'000ull, 1ull << 60}) {
    for (const std::uint64_t unit_bytes : {1ull, 64ull, 65536ull}) {
      for (const std::uint32_t of : {1u, 2u, 3u, 7u, 1000u}) {
        std::uint64_t next_byte = 0;
        for (std::uint32_t index = 0; index < of; ++index) {
          const ByteRange range = bytes_of({index, of}, shard_bytes, unit_bytes);
          EXPECT_EQ(range.first_byte, next_byte);
          if (range.size_bytes > 0) {
            EXPECT_EQ(range.first_byte % unit_bytes, 0u);
          }
          next_byte += range.size_bytes;
          EXPECT_LE(range.size_bytes, (shard_bytes / unit_bytes / of + 1) * unit_bytes);
        }
        EXPECT_EQ(next_byte, shard_bytes);
      }
    }
  }
}

std::string refusal(const Request& request) {
  try {
    place(request);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(Placement, RefusesImpossibleRequestsInOneSentence) {
  EXPECT_EQ(refusal({.nodes = 4, .copies = 5}),
            "5 copies need as many nodes, but there are only 4: ask for fewer copies or add nodes");
  EXPECT_EQ(refusal({.nodes = 4, .copies = 0}), "a placement needs at least one copy, the node's own, not 0");
  EXPECT_EQ(refusal({.nodes = 0, .copies = 1}), "a placement needs at least one node, not 0");
  EXPECT_EQ(refusal({.nodes = 4, .copies = 2, .order = {0, 1, 1, 2}}), "the given order of nodes has node 1 twice");
  EXPECT_EQ(refusal({.nodes = 4, .copies = 2, .order = {0, 1, 9, 2}}),
            "the given order of nodes has node 9, but nodes are numbered from 0 to 3");
  EXPECT_EQ(refusal({.nodes = 4, .copies = 2, .order = {0, 1}}),
            "the given order of nodes has 2 nodes, but the placement has 4");
  const Domains domains = Domains::flat({0, 1, 2});
  EXPECT_EQ(refusal({.nodes = 4, .copies = 2, .domains = &domains}),
            "failure domains are given for 3 nodes, but the placement has 4");
  EXPECT_NE(refusal({.nodes = 100'000, .copies = 100'000}), "");
}

TEST(Strategies, AreFoundByTheirNames) {
  for (const auto strategy : all_strategies) EXPECT_EQ(strategy_named(name(strategy)), strategy);
  try {
    strategy_named("grid");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "there is no placement strategy 'grid': choose one of group, ring, mixed, cover, sharded, "
                 "sharded+copy");
  }
}

}  // namespace
}  // namespace ckpt::placement
