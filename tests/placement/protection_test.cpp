// Costs and odds of protections against the layout itself, enumeration, and the odds of placements.
#include "placement/protection.hpp"

#include <gtest/gtest.h>

#include <bit>

#include "placement/odds/survival.hpp"
#include "tests/placement/support.hpp"

namespace ckpt::placement {
namespace {

TEST(Protection, CostsMatchTheLayout) {
  for (std::uint32_t parity = 1; parity <= 4; ++parity) {
    for (std::uint32_t members = parity + 1; members <= 12; ++members) {
      const std::uint64_t length = 16 * (members - parity);
      const ParityLayout layout(std::vector<std::uint64_t>(members, length), parity, 16);
      const auto protection = Protection::of_parity(members, parity);
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

TEST(Protection, OddsMatchEnumeration) {
  for (const auto& protection :
       {Protection::of_copies(2), Protection::of_copies(3), Protection::of_parity(3, 1), Protection::of_parity(4, 1),
        Protection::of_parity(4, 2), Protection::of_parity(6, 3)}) {
    constexpr std::uint32_t nodes = 12;
    const std::uint32_t members = protection.has_parity() ? protection.members : protection.copies;
    const std::uint32_t tolerated = protection.has_parity() ? protection.rows : protection.copies - 1;
    for (std::uint32_t lost = 0; lost <= nodes; ++lost) {
      double survived = 0, all = 0;
      each_subset(nodes, lost, [&](std::uint32_t mask) {
        bool survives = true;
        for (std::uint32_t first = 0; first < nodes; first += members) {
          const std::uint32_t group = mask >> first & ((1u << members) - 1);
          survives = survives && static_cast<std::uint32_t>(std::popcount(group)) <= tolerated;
        }
        survived += survives ? 1 : 0;
        ++all;
      });
      EXPECT_NEAR(recoverable(protection, nodes, lost), survived / all, 1e-12) << name(protection) << " " << lost;
    }
  }
}

TEST(Protection, OddsOfCopiesMatchGroups) {
  for (const std::uint32_t copies : {2u, 3u}) {
    for (const std::uint32_t nodes : {12u, 48u, 6000u}) {
      const Pattern pattern = place({.strategy = Strategy::group, .nodes = nodes, .copies = copies}).pattern();
      for (const std::uint32_t lost : {1u, 2u, 3u, 4u, 12u}) {
        EXPECT_NEAR(recoverable(Protection::of_copies(copies), nodes, lost), survival_odds(pattern, lost).survival,
                    1e-9);
      }
    }
  }
}

TEST(Protection, RefusesGroupsThatDoNotDivideTheNodes) {
  EXPECT_THROW(recoverable(Protection::of_copies(3), 16, 1), std::invalid_argument);
  EXPECT_THROW(recoverable(Protection::of_copies(2), 16, 17), std::invalid_argument);
}

TEST(Protection, CopiesAndParityAreJudgedOneAtATime) {
  const Protection both{2, 4, 1};
  EXPECT_THROW(recoverable(both, 16, 1), std::invalid_argument);
  EXPECT_THROW(sent(both), std::invalid_argument);
  EXPECT_THROW(extra_stored(both), std::invalid_argument);
}

TEST(Protection, NamesMatchTheOptionAndParseBack) {
  EXPECT_EQ(name(Protection::of_copies(2)), "copies(2)");
  EXPECT_EQ(name(Protection::of_parity(4, 1)), "xor(4)");
  EXPECT_EQ(name(Protection::of_parity(8, 2)), "rs(8,2)");
  EXPECT_EQ(name({2, 4, 1}), "copies(2)+xor(4)");
  for (const auto& protection : {Protection::of_copies(1), Protection::of_copies(16), Protection::of_parity(2, 1),
                                 Protection::of_parity(64, 4), Protection{3, 8, 2}}) {
    EXPECT_EQ(protection_named(name(protection)), protection);
  }
  EXPECT_EQ(protection_named("xor:4"), Protection::of_parity(4, 1));
  EXPECT_EQ(protection_named("rs:8,2"), Protection::of_parity(8, 2));
  EXPECT_EQ(protection_named("rs(8,2)+copies(2)"), (Protection{2, 8, 2}));
}

TEST(Protection, RefusesInvalidNames) {
  for (const char* text : {"",
                           "xor",
                           "xor(",
                           "xor()",
                           "xor(4",
                           "xor4",
                           "xor(4))",
                           "xor(4,1)",
                           "xor(1)",
                           "xor(65)",
                           "xor(-4)",
                           "rs(8)",
                           "rs(8,0)",
                           "rs(8,5)",
                           "rs(2,2)",
                           "rs(8,2,1)",
                           "rs(8,)",
                           "copies(0)",
                           "copies(17)",
                           "copies(2)+",
                           "+xor(4)",
                           "copies(2)+copies(2)",
                           "xor(4)+rs(8,2)",
                           "copies(2) + xor(4)",
                           "parity(4)",
                           "xor(99999999999)"}) {
    EXPECT_THROW(protection_named(text), std::invalid_argument) << text;
  }
}

}  // namespace
}  // namespace ckpt::placement
