#include "src/gpu_replication/exchange.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <stdexcept>

namespace ckpt::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

ExchangeRequest pair() { return {.lengths_bytes = {50, 30}, .reserved_bytes = 80, .buffers = 2, .grain_bytes = 1}; }

ExchangeRequest random_request(std::mt19937_64& random) {
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  ExchangeRequest request;
  request.lengths_bytes.resize(1 + below(6));
  for (auto& length_bytes : request.lengths_bytes) length_bytes = below(4) == 0 ? 0 : below(5000);
  request.buffers = static_cast<std::uint32_t>(1 + below(5));
  request.grain_bytes = 1 + below(64);
  const std::uint64_t least_bytes = request.grain_bytes * request.buffers * (request.lengths_bytes.size() + 1);
  request.reserved_bytes = least_bytes + below(2000);
  return request;
}

// For `seeds` requests.
template <class Check>
void for_any(std::uint64_t seeds, Check check) {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    std::mt19937_64 random(seed);
    const ExchangeRequest request = random_request(random);
    SCOPED_TRACE("seed " + std::to_string(seed));
    check(request, ExchangePlan(request));
  }
}

TEST(Exchange, GoesChunkByChunkInBothDirections) {
  const ExchangePlan plan(pair());
  EXPECT_EQ(plan.chunk_bytes(), 20u);
  ASSERT_EQ(plan.steps(), 3u);
  EXPECT_THAT(plan.step(0, 0), ElementsAre(ExchangeTransfer{true, 1, 0, 20, 0}, ExchangeTransfer{false, 1, 0, 20, 1}));
  EXPECT_THAT(plan.step(0, 1),
              ElementsAre(ExchangeTransfer{true, 1, 20, 20, 0}, ExchangeTransfer{false, 1, 20, 10, 1}));
  EXPECT_THAT(plan.step(1, 1),
              ElementsAre(ExchangeTransfer{true, 0, 20, 10, 0}, ExchangeTransfer{false, 0, 20, 20, 1}));
  EXPECT_THAT(plan.step(0, 2), ElementsAre(ExchangeTransfer{true, 1, 40, 10, 0}, ExchangeTransfer{false, 1, 30, 0, 1}));
  EXPECT_THAT(plan.step(1, 2), ElementsAre(ExchangeTransfer{true, 0, 30, 0, 0}, ExchangeTransfer{false, 0, 40, 10, 1}));
  EXPECT_THAT(plan.step(0, 3), IsEmpty());
}

TEST(Exchange, SingleMemberSendsToItself) {
  auto request = pair();
  request.lengths_bytes = {50};
  const ExchangePlan plan(request);
  EXPECT_EQ(plan.chunk_bytes(), 20u);
  EXPECT_THAT(plan.step(0, 2),
              ElementsAre(ExchangeTransfer{true, 0, 40, 10, 0}, ExchangeTransfer{false, 0, 40, 10, 1}));
}

TEST(Exchange, EverySendHasAReceiveInTheSameStep) {
  for_any(300, [](const ExchangeRequest&, const ExchangePlan& plan) {
    for (std::uint64_t number = 0; number < plan.steps(); ++number)
      for (std::uint32_t a = 0; a < plan.members(); ++a)
        for (std::uint32_t b = 0; b < plan.members(); ++b) {
          std::vector<ExchangeTransfer> sent, received;
          for (auto transfer : plan.step(a, number))
            if (transfer.is_send && transfer.peer == b)
              sent.push_back({true, 0, transfer.first_byte, transfer.size_bytes});
          for (auto transfer : plan.step(b, number))
            if (!transfer.is_send && transfer.peer == a)
              received.push_back({true, 0, transfer.first_byte, transfer.size_bytes});
          EXPECT_EQ(sent, received);
        }
  });
}

// So a step that ends on one member was issued by all.
TEST(Exchange, EveryMemberSendsToEveryOtherInEachStep) {
  for_any(300, [](const ExchangeRequest&, const ExchangePlan& plan) {
    for (std::uint64_t number = 0; number < plan.steps(); ++number)
      for (std::uint32_t member = 0; member < plan.members(); ++member) {
        std::set<std::pair<bool, std::uint32_t>> ways;
        for (const auto& transfer : plan.step(member, number)) {
          EXPECT_GT(transfer.crossing_bytes(), 0u);
          ways.insert({transfer.is_send, transfer.peer});
        }
        EXPECT_EQ(ways.size(), 2 * std::max(plan.members() - 1, 1u));
      }
  });
}

TEST(Exchange, SendsEveryByteOnceAndInOrderToEveryOtherMember) {
  for_any(300, [](const ExchangeRequest& request, const ExchangePlan& plan) {
    for (std::uint32_t member = 0; member < plan.members(); ++member) {
      std::map<std::uint32_t, std::uint64_t> sent_bytes;  // by receiver
      for (std::uint64_t number = 0; number < plan.steps(); ++number)
        for (const auto& transfer : plan.step(member, number)) {
          if (!transfer.is_send || transfer.size_bytes == 0) continue;
          EXPECT_EQ(transfer.first_byte, sent_bytes[transfer.peer]);
          sent_bytes[transfer.peer] += transfer.size_bytes;
        }
      const std::uint64_t length_bytes = request.lengths_bytes[member];
      const std::size_t receivers = length_bytes == 0 ? 0 : std::max<std::size_t>(plan.members() - 1, 1);
      EXPECT_EQ(sent_bytes.size(), receivers);
      for (const auto& [peer, bytes] : sent_bytes) EXPECT_EQ(bytes, length_bytes);
    }
  });
}

TEST(Exchange, StepsInFlightFitTheReservedMemory) {
  for_any(300, [](const ExchangeRequest& request, const ExchangePlan& plan) {
    EXPECT_LE(plan.chunk_bytes() * plan.places() * plan.buffers(), request.reserved_bytes);
    EXPECT_EQ(plan.chunk_bytes() % request.grain_bytes, 0u);
    for (std::uint64_t number = 0; number < plan.steps(); ++number)
      for (std::uint32_t member = 0; member < plan.members(); ++member)
        for (const auto& transfer : plan.step(member, number)) {
          EXPECT_LE(transfer.crossing_bytes(), plan.chunk_bytes());
        }
  });
}

TEST(Exchange, StepsEndWithTheLongestPiece) {
  for_any(300, [](const ExchangeRequest&, const ExchangePlan& plan) {
    std::size_t transfers = 0;
    for (std::uint32_t member = 0; member < plan.members(); ++member) {
      EXPECT_THAT(plan.step(member, plan.steps()), IsEmpty());
      EXPECT_THAT(plan.step(member, UINT64_MAX), IsEmpty());
      if (plan.steps() != 0) transfers += plan.step(member, plan.steps() - 1).size();
    }
    EXPECT_EQ(transfers == 0, plan.steps() == 0);
  });
}

ExchangeRequest parity_request(std::mt19937_64& random) {
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  ExchangeRequest request;
  request.lengths_bytes.resize(2 + below(6));
  for (auto& length_bytes : request.lengths_bytes) length_bytes = below(4) == 0 ? below(3) : below(3'000'000);
  request.rows = static_cast<std::uint32_t>(1 + below(std::min<std::size_t>(4, request.lengths_bytes.size() - 1)));
  request.buffers = static_cast<std::uint32_t>(1 + below(4));
  request.reserved_bytes = request.buffers * (request.lengths_bytes.size() * 2 + below(30)) * (66u << 10);
  return request;
}

// Each byte of parity is made once, from exactly the bytes that the layout names, and each of these was sent before.
TEST(Exchange, ParityExchangeGivesEachMemberItsParitysInputs) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    const ExchangeRequest request = parity_request(random);
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ExchangePlan plan(request);
    const placement::ParityLayout& layout = *plan.parity();
    EXPECT_LE(plan.step_bytes() * plan.buffers(), request.reserved_bytes);
    for (std::uint32_t member = 0; member < plan.members(); ++member) {
      std::uint64_t made_bytes = 0;
      for (std::uint64_t number = 0; number < plan.steps(); ++number) {
        const EncodingStep made = plan.encoding(member, number);
        EXPECT_EQ(plan.arrived_bytes(member, number), made_bytes);
        EXPECT_EQ(made.first_byte, made_bytes);
        made_bytes += made.size_bytes;
        std::map<std::uint32_t, ExchangeTransfer> received;  // by place
        for (const auto& transfer : plan.step(member, number)) {
          EXPECT_LT(transfer.place, plan.places());
          EXPECT_LE(transfer.crossing_bytes(), plan.chunk_bytes());
          if (!transfer.is_send) received[transfer.place] = transfer;
        }
        EXPECT_EQ(received.size(), plan.members() - 1) << "no step ends before all have issued it";
        ASSERT_EQ(made.sources.size(), layout.columns());
        const std::uint32_t stripe = layout.stripe_of_row(member, made.row);
        const std::uint64_t at = made.first_byte - layout.row_offset(member, made.row);
        std::uint64_t used_bytes = 0, received_bytes = 0;
        for (const auto& [place, transfer] : received) received_bytes += transfer.size_bytes;
        for (std::uint32_t column = 0; column < layout.columns(); ++column) {
          const auto& source = made.sources[column];
          const auto& transfer = received.at(source.place);
          EXPECT_EQ(transfer.peer, layout.member_at(stripe, column));
          EXPECT_EQ(transfer.size_bytes, source.size_bytes);
          const auto segment = layout.segment(transfer.peer, column);
          const std::uint64_t end =
              std::min(segment.first_byte + segment.size_bytes, request.lengths_bytes[transfer.peer]);
          const std::uint64_t first = std::min(segment.first_byte + at, end);
          EXPECT_EQ(source.size_bytes, std::min(plan.chunk_bytes(), end - first));
          if (source.size_bytes != 0) {
            EXPECT_EQ(transfer.first_byte, first);
          }
          used_bytes += source.size_bytes;
        }
        EXPECT_EQ(used_bytes, received_bytes);
      }
      EXPECT_EQ(made_bytes, layout.parity_bytes_of(member));
      EXPECT_EQ(plan.arrived_bytes(member, plan.steps()), made_bytes);
    }
  }
}

TEST(Exchange, BothSidesOfAParityTransferAgree) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    std::mt19937_64 random(seed);
    const ExchangePlan plan(parity_request(random));
    for (std::uint64_t number = 0; number < plan.steps(); ++number)
      for (std::uint32_t member = 0; member < plan.members(); ++member)
        for (const auto& transfer : plan.step(member, number)) {
          const auto theirs = plan.step(transfer.peer, number);
          EXPECT_EQ(std::count_if(theirs.begin(), theirs.end(),
                                  [&](const ExchangeTransfer& other) {
                                    return other.is_send != transfer.is_send && other.peer == member &&
                                           other.first_byte == transfer.first_byte &&
                                           other.size_bytes == transfer.size_bytes;
                                  }),
                    1);
        }
  }
}

TEST(Exchange, EmptyPiecesNeedNoSteps) {
  auto request = pair();
  request.lengths_bytes = {0, 0};
  EXPECT_EQ(ExchangePlan(request).steps(), 0u);
}

TEST(Exchange, RefusesInvalidRequests) {
  const auto refused = [](auto change) {
    return [change] {
      auto request = pair();
      change(request);
      ExchangePlan{request};
    };
  };
  using Invalid = std::invalid_argument;
  EXPECT_THAT(refused([](auto& r) { r.lengths_bytes.clear(); }), ThrowsMessage<Invalid>(HasSubstr("0 members")));
  EXPECT_THAT(refused([](auto& r) { r.buffers = 0; }), ThrowsMessage<Invalid>(HasSubstr("0 buffers")));
  EXPECT_THAT(refused([](auto& r) { r.grain_bytes = 0; }), ThrowsMessage<Invalid>(HasSubstr("grains of 0 bytes")));
  EXPECT_THAT(refused([](auto& r) { r.reserved_bytes = 3; }),
              ThrowsMessage<Invalid>(HasSubstr("2 members in 2 buffers")));
  EXPECT_THAT(refused([](auto& r) { r.rows = 1; }), ThrowsMessage<Invalid>(HasSubstr("not whole leaves")));
  EXPECT_THAT(refused([](auto& r) { r.rows = 2; }), ThrowsMessage<Invalid>(HasSubstr("parity group of 2 members")));
}

}  // namespace
}  // namespace ckpt::schedule
