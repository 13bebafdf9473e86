// The layout of parity groups: what lies where, what is sent, and how much.
#include "placement/parity_layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "placement/odds/sampling.hpp"
#include "tests/placement/positions.hpp"

namespace ckpt::placement {
namespace {

constexpr std::uint64_t unit = 16;

std::vector<ParityLayout> layouts() {
  std::vector<ParityLayout> all;
  for (std::uint32_t parity = 1; parity <= 4; ++parity) {
    for (std::uint32_t members = parity + 1; members <= 9; ++members) {
      std::vector<std::uint64_t> lengths(members);
      all.emplace_back(lengths, parity, unit);  // all empty
      for (std::uint32_t i = 0; i < members; ++i) lengths[i] = i % 3 == 2 ? 0 : 1 + (i * 389) % 1009;
      all.emplace_back(lengths, parity, unit);
      all.emplace_back(std::vector<std::uint64_t>(members, unit * (members - parity)), parity, unit);
      all.emplace_back(std::vector<std::uint64_t>(members, 1), parity, unit);
    }
  }
  return all;
}

TEST(ParityLayout, EveryMemberHasOnePositionInEveryStripe) {
  for (const auto& layout : layouts()) {
    for (std::uint32_t stripe = 0; stripe < layout.members(); ++stripe) {
      std::set<std::uint32_t> members;
      for (std::uint32_t position = 0; position < layout.members(); ++position) {
        const std::uint32_t member = layout.member_at(stripe, position);
        EXPECT_TRUE(members.insert(member).second);
        EXPECT_EQ(position_of(layout, stripe, member), position);
        if (!layout.is_parity(position)) {
          EXPECT_EQ(layout.stripe_of(member, position), stripe);
        }
      }
      for (std::uint32_t row = 0; row < layout.parity(); ++row) {
        EXPECT_EQ(layout.member_at(stripe, layout.columns() + row), (stripe + row) % layout.members());
      }
    }
  }
}

// The figure in the header.
TEST(ParityLayout, FourMembersWithOneParityRowMatchTheDrawing) {
  const ParityLayout layout(std::vector<std::uint64_t>(4, 48), 1, unit);
  const std::vector<std::vector<int>> drawn = {{-1, 0, 1, 2}, {2, -1, 0, 1}, {1, 2, -1, 0}, {0, 1, 2, -1}};
  for (std::uint32_t stripe = 0; stripe < 4; ++stripe) {
    for (std::uint32_t member = 0; member < 4; ++member) {
      const std::uint32_t position = position_of(layout, stripe, member);
      EXPECT_EQ(layout.is_parity(position) ? -1 : static_cast<int>(position), drawn[stripe][member]);
    }
  }
}

TEST(ParityLayout, SegmentsAreConsecutiveAndSizedForTheLongestShard) {
  for (const auto& layout : layouts()) {
    std::uint64_t longest = 0;
    for (std::uint32_t member = 0; member < layout.members(); ++member) {
      longest = std::max(longest, layout.length_bytes(member));
      std::uint64_t end = 0;
      for (std::uint32_t column = 0; column < layout.columns(); ++column) {
        const ByteRange segment = layout.segment(member, column);
        EXPECT_EQ(segment.first_byte, end);
        EXPECT_LE(segment.size_bytes, layout.segment_bytes());
        end += segment.size_bytes;
      }
      EXPECT_EQ(end, layout.length_bytes(member));
    }
    EXPECT_EQ(layout.segment_bytes() % unit, 0U);
    EXPECT_GE(layout.segment_bytes() * layout.columns(), longest);
    EXPECT_LT(layout.segment_bytes(), longest / layout.columns() + 1 + unit);
  }
}

TEST(ParityLayout, ParityIsAsLongAsItsStripesLongestSegment) {
  for (const auto& layout : layouts()) {
    std::uint64_t total = 0;
    for (std::uint32_t stripe = 0; stripe < layout.members(); ++stripe) {
      std::uint64_t most = 0;
      for (std::uint32_t column = 0; column < layout.columns(); ++column) {
        most = std::max(most, layout.stored_bytes(stripe, column));
      }
      EXPECT_EQ(layout.parity_bytes(stripe), most);
      EXPECT_EQ(layout.stored_bytes(stripe, layout.columns()), most);
      total += most * layout.parity();
    }
    std::uint64_t held = 0;
    for (std::uint32_t member = 0; member < layout.members(); ++member) {
      std::uint64_t own = 0;
      for (std::uint32_t stripe = 0; stripe < layout.members(); ++stripe) {
        if (layout.is_parity(position_of(layout, stripe, member))) own += layout.parity_bytes(stripe);
      }
      EXPECT_EQ(layout.parity_bytes_of(member), own);
      held += own;
    }
    EXPECT_EQ(held, total);
  }
}

// Follows the transfers: every row's holder gets every source's bytes once, or the finished row once.
TEST(ParityLayout, TransfersBringEveryRowExactlyItsInputs) {
  for (const auto& layout : layouts()) {
    EXPECT_TRUE(layout.transfers(Route::local).empty());
    for (const Route route : {Route::direct, Route::gathered}) {
      std::map<std::pair<std::uint32_t, std::uint32_t>, std::set<std::uint32_t>> arrived;  // [stripe, member]
      for (const ParityTransfer& transfer : layout.transfers(route)) {
        EXPECT_GT(transfer.bytes.size_bytes, 0U);
        EXPECT_NE(transfer.from, transfer.to);
        EXPECT_TRUE((arrived[{transfer.stripe, transfer.to}].insert(transfer.position).second));
        if (layout.is_parity(transfer.position)) {
          EXPECT_EQ(transfer.from, transfer.stripe);  // row 0
          EXPECT_EQ(transfer.to, layout.member_at(transfer.stripe, transfer.position));
          EXPECT_EQ(transfer.bytes, (ByteRange{0, layout.parity_bytes(transfer.stripe)}));
        } else {
          EXPECT_EQ(transfer.from, layout.member_at(transfer.stripe, transfer.position));
          EXPECT_EQ(transfer.bytes, layout.segment(transfer.from, transfer.position));
        }
      }
      for (std::uint32_t stripe = 0; stripe < layout.members(); ++stripe) {
        std::set<std::uint32_t> sources;
        for (std::uint32_t column = 0; column < layout.columns(); ++column) {
          if (layout.stored_bytes(stripe, column) > 0) sources.insert(column);
        }
        for (std::uint32_t row = 0; row < layout.parity(); ++row) {
          const std::uint32_t position = layout.columns() + row;
          std::set<std::uint32_t> finished;
          if (layout.parity_bytes(stripe) > 0) finished.insert(position);
          EXPECT_EQ((arrived[{stripe, layout.member_at(stripe, position)}]),
                    row == 0 || route == Route::direct ? sources : finished);
        }
      }
    }
  }
}

TEST(ParityLayout, RefusesImpossibleGroups) {
  const auto make = [](std::size_t members, std::uint32_t parity, std::uint64_t unit_bytes) {
    ParityLayout(std::vector<std::uint64_t>(members, 1), parity, unit_bytes);
  };
  EXPECT_NO_THROW(make(2, 1, 1));
  EXPECT_NO_THROW(make(64, 4, 1));
  EXPECT_THROW(make(1, 1, 1), std::invalid_argument);
  EXPECT_THROW(make(0, 1, 1), std::invalid_argument);
  EXPECT_THROW(make(4, 0, 1), std::invalid_argument);
  EXPECT_THROW(make(4, 4, 1), std::invalid_argument);
  EXPECT_THROW(make(8, 5, 1), std::invalid_argument);
  EXPECT_THROW(make(65, 1, 1), std::invalid_argument);
  EXPECT_THROW(make(4, 1, 0), std::invalid_argument);
}

}  // namespace
}  // namespace ckpt::placement
