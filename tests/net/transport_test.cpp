#include "net/transport.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "base/error.hpp"
#include "net_support.hpp"

namespace ckpt::net::testing {
namespace {

class OverEachTransport : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, OverEachTransport, ::testing::ValuesIn(each_transport),
                         [](const auto& tested) { return name_of(tested.param); });

TEST_P(OverEachTransport, DeliversMessagesIntactInBothDirections) {
  Pair pair(GetParam());
  const auto large = pattern(3'000'001, 7);
  EXPECT_TRUE(pair.one.transport->send(2, bytes_of("hello two")));
  EXPECT_TRUE(pair.two.transport->send(1, large));
  EXPECT_TRUE(pair.two.transport->send(1, {}));

  const auto at_two = pair.two.messages.wait_for(1);
  ASSERT_EQ(at_two.size(), 1u);
  EXPECT_EQ(at_two[0].first, 1u);
  EXPECT_EQ(text_of(at_two[0].second), "hello two");

  auto at_one = pair.one.messages.wait_for(2);
  ASSERT_EQ(at_one.size(), 2u);
  if (at_one[0].second.empty()) std::swap(at_one[0], at_one[1]);  // a small one may overtake a large one
  EXPECT_EQ(at_one[0].first, 2u);
  EXPECT_TRUE(at_one[0].second == large);
  EXPECT_TRUE(at_one[1].second.empty());
}

TEST_P(OverEachTransport, DeliversAPieceBitForBit) {
  Pair pair(GetParam());
  const auto piece = pattern(64u << 20, 1);
  pair.two.serves({"layers", 9}, piece, "the manifest");
  const auto sink = pair.one.fetch(2, {"layers", 9});
  ASSERT_EQ(sink->end(), FetchEnd::complete);
  EXPECT_EQ(text_of(sink->manifest), "the manifest");
  EXPECT_TRUE(sink->data == piece);
  EXPECT_EQ(sink->received_bytes, piece.size());
  EXPECT_TRUE(sink->in_order);
}

TEST_P(OverEachTransport, DeliversPiecesOfOddSizes) {
  Pair pair(GetParam());
  constexpr std::size_t chunk = 1u << 20;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{65537}, chunk - 1,
                                 chunk, chunk + 1, 7 * chunk + 12345}) {
    const auto piece = pattern(size, size);
    pair.two.serves({"odd", size}, piece, std::string(size % 20000, 'm'));
    const auto sink = pair.one.fetch(2, {"odd", size});
    ASSERT_EQ(sink->end(), FetchEnd::complete) << size;
    EXPECT_TRUE(sink->data == piece) << size;
    EXPECT_EQ(sink->manifest.size(), size % 20000);
    EXPECT_EQ(sink->received_bytes, size);
    EXPECT_TRUE(sink->in_order);
  }
}

TEST_P(OverEachTransport, CompletesConcurrentFetchesInBothDirections) {
  Pair pair(GetParam());
  constexpr std::size_t count = 20;  // more than are served at once
  for (std::size_t i = 0; i < count; ++i) {
    pair.one.serves({"one", i}, pattern(3'000'000 + i, i), "");
    pair.two.serves({"two", i}, pattern(2'000'000 + i, i), "");
  }
  std::vector<std::shared_ptr<MemorySink>> at_one, at_two;
  for (std::size_t i = 0; i < count; ++i) {
    at_one.push_back(pair.one.fetch(2, {"two", i}));
    at_two.push_back(pair.two.fetch(1, {"one", i}));
  }
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(at_one[i]->end(), FetchEnd::complete) << i;
    ASSERT_EQ(at_two[i]->end(), FetchEnd::complete) << i;
    EXPECT_TRUE(at_one[i]->data == pattern(2'000'000 + i, i)) << i;
    EXPECT_TRUE(at_two[i]->data == pattern(3'000'000 + i, i)) << i;
  }
}

TEST_P(OverEachTransport, FetchesFromItself) {
  Node node(loopback_options(1, 100, GetParam()));
  node.knows(node);
  node.serves({"own", 1}, pattern(100'000, 1), "");
  const auto sink = node.fetch(1, {"own", 1});
  ASSERT_EQ(sink->end(), FetchEnd::complete);
  EXPECT_TRUE(sink->data == pattern(100'000, 1));
}

TEST(Transport, ReportsAMissingPiece) {
  Pair pair;
  pair.two.serves({"layers", 9}, {}, "");
  EXPECT_EQ(pair.one.fetch(2, {"layers", 8})->end(), FetchEnd::not_there);
  EXPECT_EQ(pair.one.fetch(2, {"layer", 9})->end(), FetchEnd::not_there);
  EXPECT_EQ(pair.one.fetch(2, {"layers", 9})->end(), FetchEnd::complete);
}

TEST(Transport, RefusingSinkReceivesNothing) {
  Pair pair;
  pair.two.serves({"layers", 9}, pattern(5'000'000, 1), "");
  const auto sink = std::make_shared<MemorySink>(4'999'999);
  pair.one.transport->fetch(2, {"layers", 9}, sink, 25000);
  EXPECT_EQ(sink->end(), FetchEnd::refused);
  EXPECT_TRUE(sink->begun);
  EXPECT_EQ(sink->received_bytes, 0u);
}

TEST(Transport, RefusesATooLongShardName) {
  Pair pair;
  EXPECT_EQ(pair.one.fetch(2, {std::string(5000, 's'), 1})->end(), FetchEnd::refused);
}

TEST(Transport, RefusesAnOversizedMessageOnBothSides) {
  auto small = loopback_options(1, 100);
  small.message_bytes_max = 100'000;
  auto one_at_a_time = loopback_options(2, 200);
  one_at_a_time.queue_limit = 1;
  Node narrow(small);
  Node wide(one_at_a_time);
  narrow.knows(wide);
  wide.knows(narrow);
  EXPECT_FALSE(narrow.transport->send(2, std::vector<std::byte>(100'001)));
  EXPECT_TRUE(narrow.transport->send(2, std::vector<std::byte>(100'000)));
  EXPECT_EQ(wide.messages.wait_for(1).size(), 1u);

  EXPECT_TRUE(wide.transport->send(1, std::vector<std::byte>(100'001)));
  const auto deadline = std::chrono::steady_clock::now() + wait_limit;
  while (!wide.transport->send(1, bytes_of("fits")) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();  // until the first one was taken, and dropped, at the other end
  }
  const auto at_narrow = narrow.messages.wait_for(1);
  ASSERT_EQ(at_narrow.size(), 1u);
  EXPECT_EQ(text_of(at_narrow[0].second), "fits");
}

TEST(Transport, FetchWithAZeroTimeoutTimesOut) {
  Pair pair;
  pair.two.serves({"layers", 9}, pattern(64u << 20, 1), "");
  EXPECT_EQ(pair.one.fetch(2, {"layers", 9}, 0)->end(), FetchEnd::timed_out);
  EXPECT_EQ(pair.one.fetch(2, {"layers", 9})->end(), FetchEnd::complete);
}

TEST(Transport, DestructionEndsEveryFetch) {
  std::vector<std::shared_ptr<MemorySink>> sinks;
  Node two(loopback_options(2, 200));
  two.serves({"layers", 9}, pattern(64u << 20, 1), "");
  {
    Node one(loopback_options(1, 100));
    one.knows(two);
    for (int i = 0; i < 8; ++i) sinks.push_back(one.fetch(2, {"layers", 9}));
    sinks[0]->arrivals.wait_for(1);
  }
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->ends.count(), 1u);
    EXPECT_TRUE(sink->in_order);
  }
}

// Streams listen at one address: a list is refused, and not taken for another interface.
TEST(Transport, RefusesAListOfInterfacesIfItNeedsOne) {
  for (const std::string transports : {"tcp", "shm"}) {
    auto options = loopback_options(1, 100, transports);
    options.interface = "lo,eth0";
    try {
      Transport::create(options, {});
      ADD_FAILURE() << "a list was taken";
    } catch (const Failure& failure) {
      EXPECT_NE(std::string(failure.what()).find("must name one network interface"), std::string::npos)
          << failure.what();
    }
  }
  auto options = loopback_options(1, 100, "tcp,cma");
  options.interface = "lo,no-such";
  EXPECT_TRUE(Transport::create(options, {})->address().starts_with("127.0.0.1:"));
}

TEST(Transport, FailsOnAnUnknownTransportOrInterface) {
  auto options = loopback_options(1, 100);
  options.transports = "no such transport";
  EXPECT_THROW(Transport::create(options, {}), Failure);
  options.transports = "tcp";
  options.interface = "no such interface";
  EXPECT_THROW(Transport::create(options, {}), Failure);
}

}  // namespace
}  // namespace ckpt::net::testing
