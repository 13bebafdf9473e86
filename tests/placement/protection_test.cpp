// Costs and odds of protections against the layout itself, enumeration, and the odds of placements.
#include "placement/protection.hpp"

#include <gtest/gtest.h>

#include <bit>

#include "placement/survival.hpp"
#include "tests/placement/support.hpp"

namespace ckpt::placement {
namespace {

TEST(Protection, CostsAreThoseOfTheLayout) {
  for (std::uint32_t parity = 1; parity <= 4; ++parity) {
    for (std::uint32_t members = parity + 1; members <= 12; ++members) {
      const std::uint64_t length = 16 * (members - parity);
      const ParityLayout layout(std::vector<std::uint64_t>(members, length), parity, 16);
      const auto protection = Protection::parity_of(members, parity);
      const auto shards = static_cast<double>(length);
      for (const Route route : {Route::direct, Route::gathered, Route::local}) {
        std::vector<std::uint64_t> sent_bytes(members), received_bytes(members);
        for (const ParityTransfer& transfer : layout.transfers(route)) {
          sent_bytes[transfer.from] += transfer.bytes.size_bytes;
          received_bytes[transfer.to] += transfer.bytes.size_bytes;
        }
        for (std::uint32_t member = 0; member < members; ++member) {
          EXPECT_DOUBLE_EQ(static_cast<double>(sent_bytes[member]) / shards, sent(protection, route));
          EXPECT_EQ(received_bytes[member], sent_bytes[member]);
        }
      }
      for (std::uint32_t member = 0; member < members; ++member) {
        EXPECT_DOUBLE_EQ(static_cast<double>(layout.parity_bytes_of(member)) / shards, extra_stored(protection));
      }
    }
  }
}

TEST(Protection, OddsEqualWhatEnumerationCounts) {
  for (const auto& protection :
       {Protection::copies(2), Protection::copies(3), Protection::parity_of(3, 1), Protection::parity_of(4, 1),
        Protection::parity_of(4, 2), Protection::parity_of(6, 3)}) {
    constexpr std::uint32_t nodes = 12;
    for (std::uint32_t lost = 0; lost <= nodes; ++lost) {
      double survived = 0, all = 0;
      each_subset(nodes, lost, [&](std::uint32_t mask) {
        bool survives = true;
        for (std::uint32_t first = 0; first < nodes; first += protection.members) {
          const std::uint32_t group = mask >> first & ((1u << protection.members) - 1);
          survives = survives && static_cast<std::uint32_t>(std::popcount(group)) <= protection.tolerated;
        }
        survived += survives ? 1 : 0;
        ++all;
      });
      EXPECT_NEAR(recoverable(protection, nodes, lost), survived / all, 1e-12) << name(protection) << " " << lost;
    }
  }
}

TEST(Protection, OddsOfCopiesAreThoseOfGroups) {
  for (const std::uint32_t copies : {2u, 3u}) {
    for (const std::uint32_t nodes : {12u, 48u, 6000u}) {
      const Pattern pattern = place({.strategy = Strategy::group, .nodes = nodes, .copies = copies}).pattern();
      for (const std::uint32_t lost : {1u, 2u, 3u, 4u, 12u}) {
        EXPECT_NEAR(recoverable(Protection::copies(copies), nodes, lost), survival_odds(pattern, lost).survival, 1e-9);
      }
    }
  }
}

TEST(Protection, RefusesGroupsThatDoNotDivideTheNodes) {
  EXPECT_THROW(recoverable(Protection::copies(3), 16, 1), std::invalid_argument);
  EXPECT_THROW(recoverable(Protection::copies(2), 16, 17), std::invalid_argument);
}

TEST(Protection, NamesAreThoseOfTheOption) {
  EXPECT_EQ(name(Protection::copies(2)), "copies(2)");
  EXPECT_EQ(name(Protection::parity_of(4, 1)), "xor(4)");
  EXPECT_EQ(name(Protection::parity_of(8, 2)), "rs(8,2)");
}

}  // namespace
}  // namespace ckpt::placement
