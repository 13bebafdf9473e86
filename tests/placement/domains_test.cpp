#include "placement/domains.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "placement/odds/sampling.hpp"
#include "placement/placement.hpp"

namespace ckpt::placement {
namespace {

using Nodes = std::vector<std::uint32_t>;

Nodes numbers(std::uint32_t count) {
  Nodes nodes(count);
  std::iota(nodes.begin(), nodes.end(), 0);
  return nodes;
}

std::string refusal(const std::string& text, std::uint32_t nodes) {
  try {
    Domains::parse(text, nodes);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(Domains, AreParsedAsATree) {
  const auto domains = Domains::parse(
      "# a comment\n0 rack0\n1 rack0  # and another\n2 rack1\n3 rack2\n4 power1\n\n"
      "rack0 power0\nrack1 power0\nrack2 power1\n",
      5);
  ASSERT_EQ(domains.path(0).size(), 2u);
  EXPECT_EQ(domains.name(domains.path(0)[0]), "power0");
  EXPECT_EQ(domains.name(domains.path(0)[1]), "rack0");
  EXPECT_EQ(domains.name(domains.shared(0, 1)), "rack0");
  EXPECT_EQ(domains.name(domains.shared(1, 2)), "power0");
  EXPECT_EQ(domains.name(domains.shared(3, 4)), "power1");
  EXPECT_EQ(domains.shared(0, 3), no_domain);
}

TEST(Domains, DomainOfAllNodesSeparatesNothing) {
  const auto domains = Domains::parse("0 a\n1 b\na room\nb room\n", 2);
  EXPECT_EQ(domains.shared(0, 1), no_domain);
}

TEST(Domains, AreRefusedInOneSentenceIfInvalid) {
  EXPECT_EQ(refusal("0 a\n0 b\n", 1), "line 2 of the domains: node 0 is listed twice");
  EXPECT_EQ(refusal("0 a\na b\na c\n", 1), "line 3 of the domains: domain 'a' is listed twice");
  EXPECT_EQ(refusal("0 a\n7 a\n", 2), "line 2 of the domains: there is no node 7, only 0 to 1");
  EXPECT_EQ(refusal("0 a\n", 2), "node 1 is in no domain: add a line \"NODE DOMAIN\" for it");
  EXPECT_EQ(refusal("0 a\na b\nb c\nc a\n", 1),
            "domain 'a' lies within itself: correct the lines \"CHILD PARENT\" that lead from it back to it");
  EXPECT_EQ(refusal("0 a\na a\n", 1),
            "domain 'a' lies within itself: correct the lines \"CHILD PARENT\" that lead from it back to it");
  EXPECT_EQ(refusal("0 1\n", 2),
            "line 1 of the domains: node 1 cannot be a domain; domains have names, nodes have numbers");
  EXPECT_EQ(refusal("0 a b\n", 1), "line 1 of the domains: expected \"CHILD PARENT\", found \"0 a b\"");
  EXPECT_EQ(refusal("0\n", 1), "line 1 of the domains: expected \"CHILD PARENT\", found \"0\"");
}

// Whether some order of the nodes puts no two holders of one part into one domain: by trying all orders, nodes of one
// domain being alike. Sharded placements only choose the order within a cell.
bool can_be_separated(const Pattern& pattern, const Nodes& domain_of) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs;
  for (std::uint32_t position = 0; position < pattern.nodes(); ++position) {
    for (const auto holder : pattern.holders(position)) {
      if (holder != position) pairs.emplace_back(position, holder);
    }
  }
  const auto separated = [&](const Nodes& at) {
    return std::all_of(pairs.begin(), pairs.end(), [&](const auto& pair) { return at[pair.first] != at[pair.second]; });
  };
  std::vector<std::pair<std::uint32_t, std::uint32_t>> cells;  // first position, size
  if (is_sharded(pattern.strategy())) {
    for (std::uint32_t first = 0; first < pattern.nodes(); first += cells.back().second) {
      cells.emplace_back(first, pattern.place_of(first).kind->size);
    }
  } else {
    cells.emplace_back(0, pattern.nodes());
  }
  Nodes at = domain_of;
  for (const auto& [first, size] : cells) std::sort(at.begin() + first, at.begin() + first + size);
  while (true) {
    if (separated(at)) return true;
    std::size_t cell = 0;
    while (cell < cells.size() && !std::next_permutation(at.begin() + cells[cell].first,
                                                         at.begin() + cells[cell].first + cells[cell].second)) {
      ++cell;
    }
    if (cell == cells.size()) return false;
  }
}

TEST(Domains, AreNotSharedByCopiesIfAvoidable) {
  Random random(11);
  std::map<Strategy, int> possible;
  std::map<Strategy, int> impossible;
  for (int i = 0; i < 1500; ++i) {
    const std::uint32_t nodes = 2 + random_below(random, 8);
    Nodes domain_of(nodes);
    const std::uint32_t domains_wanted = 1 + random_below(random, nodes);
    for (auto& domain : domain_of) domain = random_below(random, domains_wanted);
    const Domains domains = Domains::flat(domain_of);
    const bool is_one = std::count(domain_of.begin(), domain_of.end(), domain_of[0]) == std::ptrdiff_t(nodes);
    if (is_one) continue;  // then it counts for nothing
    for (const auto strategy : all_strategies) {
      const Request request{.strategy = strategy,
                            .nodes = nodes,
                            .copies = 1 + random_below(random, std::min(nodes, 4u)),
                            .domains = &domains};
      const Placement placement = place(request);
      const bool separable = can_be_separated(placement.pattern(), domain_of);
      EXPECT_EQ(placement.unseparated().empty(), separable)
          << name(strategy) << ", " << nodes << " nodes, " << request.copies << " copies, domains "
          << testing::PrintToString(domain_of);
      ++(separable ? possible : impossible)[strategy];
    }
  }
  for (const auto strategy : all_strategies) {
    EXPECT_GT(possible[strategy], 100);
    if (strategy != Strategy::sharded) {
      EXPECT_GT(impossible[strategy], 50) << name(strategy);
    }
  }
}

// Of a tree's levels, each that can be separated is, whatever the others are like.
TEST(Domains, AreNotSharedAtALevelThatCanBeSeparated) {
  Random random(12);
  int only_the_inner = 0;
  for (int i = 0; i < 1500; ++i) {
    const std::uint32_t nodes = 4 + random_below(random, 5);
    const std::uint32_t racks = 2 + random_below(random, nodes - 1);
    Nodes rack_of(nodes);
    Nodes feed_of(nodes);
    std::string text;
    for (std::uint32_t node = 0; node < nodes; ++node) {
      rack_of[node] = node < 2 ? node : random_below(random, racks);  // two feeds at least
      feed_of[node] = rack_of[node] % 2;
      text += std::to_string(node) + " rack" + std::to_string(rack_of[node]) + "\n";
    }
    for (std::uint32_t rack = 0; rack < racks; ++rack) {
      text += "rack" + std::to_string(rack) + " feed" + std::to_string(rack % 2) + "\n";
    }
    const Domains domains = Domains::parse(text, nodes);
    for (const auto strategy : all_strategies) {
      const Request request{
          .strategy = strategy, .nodes = nodes, .copies = 2 + random_below(random, 3), .domains = &domains};
      const Placement placement = place(request);
      const bool racks_separable = can_be_separated(placement.pattern(), rack_of);
      const bool feeds_separable = can_be_separated(placement.pattern(), feed_of);
      const auto shares = [&](const char* level) {
        const auto& pairs = placement.unseparated();
        return std::any_of(pairs.begin(), pairs.end(),
                           [&](const auto& pair) { return domains.name(pair.domain).rfind(level, 0) == 0; });
      };
      const std::string example = std::string(name(strategy)) + ", " + std::to_string(request.copies) +
                                  " copies, racks " + testing::PrintToString(rack_of);
      if (feeds_separable) {
        EXPECT_TRUE(placement.unseparated().empty()) << example;
      }
      if (racks_separable && strategy != Strategy::cover) {  // whose overlap is arranged for the outer level first
        EXPECT_FALSE(shares("rack")) << example;
      }
      only_the_inner += racks_separable && !feeds_separable ? 1 : 0;
    }
  }
  EXPECT_GT(only_the_inner, 500);
}

// Two power feeds cannot separate three copies, but the racks under them can, and no copies need be on one feed.
TEST(Domains, AreSeparatedAsFarAsTheirSizeAllowsAtEveryLevel) {
  std::string text;
  for (std::uint32_t node = 0; node < 24; ++node) {
    text += std::to_string(node) + " rack" + std::to_string(node / 2) + "\n";
  }
  for (std::uint32_t rack = 0; rack < 12; ++rack) {
    text += "rack" + std::to_string(rack) + (rack < 6 ? " feed0\n" : " feed1\n");
  }
  const Domains domains = Domains::parse(text, 24);
  for (const auto strategy : {Strategy::group, Strategy::ring}) {
    const Placement placement = place({.strategy = strategy, .nodes = 24, .copies = 3, .domains = &domains});
    EXPECT_FALSE(placement.unseparated().empty());
    for (const auto& pair : placement.unseparated()) EXPECT_EQ(domains.name(pair.domain).substr(0, 4), "feed");
    for (std::uint32_t node = 0; node < 24; ++node) {
      std::map<std::uint32_t, int> on_feed;
      for (const auto holder : placement.holders(node)) ++on_feed[domains.path(holder)[0]];
      EXPECT_EQ(on_feed.size(), 2u) << name(strategy) << ": one feed holds all copies of node " << node;
    }
  }
}

TEST(Domains, SurviveTheLossOfAnyOneIfAllPairsAreSeparated) {
  Nodes domain_of(40);
  for (std::uint32_t node = 0; node < 40; ++node) domain_of[node] = node / 8;
  const Domains domains = Domains::flat(domain_of);
  for (const auto strategy : {Strategy::group, Strategy::ring, Strategy::cover}) {
    const Placement blind = place({.strategy = strategy, .nodes = 40, .copies = 2});
    const Placement aware = place({.strategy = strategy, .nodes = 40, .copies = 2, .domains = &domains});
    EXPECT_TRUE(aware.unseparated().empty());
    for (std::uint32_t rack = 0; rack < 5; ++rack) {
      LostNodes lost(40);
      for (std::uint32_t node = 8 * rack; node < 8 * rack + 8; ++node) lost.add(node);
      EXPECT_TRUE(survives(aware, lost));
      EXPECT_FALSE(survives(blind, lost));
    }
  }
}

TEST(Domains, OrderKeepsDomainsTogetherLargestFirst) {
  const Domains domains = Domains::flat({2, 0, 1, 0, 1, 0});
  EXPECT_EQ(domains.ordered(numbers(6)), (Nodes{1, 3, 5, 2, 4, 0}));
}

}  // namespace
}  // namespace ckpt::placement
