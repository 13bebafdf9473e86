#include "net/transport.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "net_support.hpp"

namespace ckpt::net::testing {
namespace {

class OverEachTransport : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, OverEachTransport, ::testing::Values("tcp", "shm"), [](const auto& tested) {
  return std::string(tested.param);
});

TEST_P(OverEachTransport, MessagesArriveIntactInBothDirections) {
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

TEST_P(OverEachTransport, APieceArrivesBitForBit) {
  Pair pair(GetParam());
  const auto piece = pattern(64u << 20, 1);
  pair.two.serves({"layers", 9}, piece, "the manifest");
  const auto sink = pair.one.fetch(2, {"layers", 9});
  ASSERT_EQ(sink->end(), FetchEnd::complete);
  EXPECT_EQ(text_of(sink->manifest), "the manifest");
  EXPECT_TRUE(sink->data == piece);
  EXPECT_EQ(sink->landed_bytes, piece.size());
  EXPECT_TRUE(sink->in_order);
}

TEST_P(OverEachTransport, EveryOddSizeArrives) {
  Pair pair(GetParam());
  constexpr std::size_t chunk = 1u << 20;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{65537}, chunk - 1, chunk,
                                 chunk + 1, 7 * chunk + 12345}) {
    const auto piece = pattern(size, size);
    pair.two.serves({"odd", size}, piece, std::string(size % 20000, 'm'));
    const auto sink = pair.one.fetch(2, {"odd", size});
    ASSERT_EQ(sink->end(), FetchEnd::complete) << size;
    EXPECT_TRUE(sink->data == piece) << size;
    EXPECT_EQ(sink->manifest.size(), size % 20000);
    EXPECT_EQ(sink->landed_bytes, size);
    EXPECT_TRUE(sink->in_order);
  }
}

}  // namespace
}  // namespace ckpt::net::testing
