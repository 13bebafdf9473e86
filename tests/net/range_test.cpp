// Fetches of parts of pieces: ranges of their bytes, with or without their manifest.
#include <gtest/gtest.h>

#include <random>

#include "net_support.hpp"

namespace ckpt::net::testing {
namespace {

constexpr std::size_t chunk = 1u << 20;  // of loopback_options
constexpr std::size_t piece_bytes = 5 * chunk + 4321;
const PieceName name{"layers", 9};

class RangesOverEachTransport : public ::testing::TestWithParam<const char*> {
 public:
  RangesOverEachTransport() : pair(GetParam()) { pair.two.serves(name, piece, manifest); }

  // What a part has to bring, worked out here byte by byte.
  std::vector<std::byte> bytes_in(const FetchPart& part) const {
    std::vector<std::byte> bytes;
    for (std::size_t i = 0; i < piece.size(); ++i) {
      if (i >= part.first_byte && i - part.first_byte < part.size_bytes) bytes.push_back(piece[i]);
    }
    return bytes;
  }
  void expect_part(const FetchPart& part) { expect_part(part, *fetch(part)); }
  void expect_part(const FetchPart& part, MemorySink& sink) const {
    SCOPED_TRACE("[" + std::to_string(part.first_byte) + ", + " + std::to_string(part.size_bytes) + ")" +
                 (part.manifest ? " with manifest" : ""));
    ASSERT_EQ(sink.end(), FetchEnd::complete);
    EXPECT_TRUE(sink.begun);
    EXPECT_TRUE(sink.data == bytes_in(part));
    EXPECT_EQ(sink.received_bytes, sink.data.size());
    EXPECT_EQ(text_of(sink.manifest), part.manifest ? manifest : "");
    EXPECT_TRUE(sink.in_order);
  }
  std::shared_ptr<MemorySink> fetch(const FetchPart& part) { return pair.one.fetch(2, name, part); }

  const std::vector<std::byte> piece = pattern(piece_bytes, 1);
  const std::string manifest = std::string(100'000, 'm');  // no header has room for it
  Pair pair;
};
INSTANTIATE_TEST_SUITE_P(, RangesOverEachTransport, ::testing::Values("tcp", "shm"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(RangesOverEachTransport, FetchesAnyRange) {
  for (const auto& [first_byte, size_bytes] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {0, 1},
           {0, chunk},
           {0, chunk + 1},
           {0, piece_bytes},
           {1, 4095},
           {12'345, 3 * chunk},  // in chunks of its own, not those of the piece
           {chunk, chunk},
           {chunk - 1, 2},
           {piece_bytes - 1, 1},
           {5 * chunk, 4321}}) {
    for (const bool with_manifest : {true, false}) expect_part({first_byte, size_bytes, with_manifest});
  }
}

TEST_P(RangesOverEachTransport, CutsARangeAtThePiecesEnd) {
  for (const std::uint64_t size_bytes : {std::uint64_t{4322}, std::uint64_t{chunk}, UINT64_MAX - 5 * chunk,
                                         UINT64_MAX - 5 * chunk + 1, UINT64_MAX - 1, UINT64_MAX}) {
    expect_part({5 * chunk, size_bytes, false});
  }
  expect_part({0, UINT64_MAX, false});
  expect_part({0, piece_bytes + 1, true});
}

TEST_P(RangesOverEachTransport, ReturnsAnEmptyRangeBeyondThePiecesEnd) {
  for (const std::uint64_t first_byte : {std::uint64_t{piece_bytes}, std::uint64_t{piece_bytes + 1}, UINT64_MAX}) {
    for (const std::uint64_t size_bytes : {std::uint64_t{0}, std::uint64_t{1}, UINT64_MAX}) {
      for (const bool with_manifest : {true, false}) expect_part({first_byte, size_bytes, with_manifest});
    }
  }
}

TEST_P(RangesOverEachTransport, CompletesAnEmptyRangeWithoutData) {
  expect_part({0, 0, false});
  expect_part({chunk, 0, false});
}

TEST_P(RangesOverEachTransport, FetchesAManifestAlone) {
  const auto sink = fetch({0, 0, true});
  ASSERT_EQ(sink->end(), FetchEnd::complete);
  EXPECT_EQ(text_of(sink->manifest), manifest);
  EXPECT_TRUE(sink->data.empty());
}

TEST_P(RangesOverEachTransport, FetchesAWholePieceAsARange) {
  expect_part(FetchPart{});
  expect_part(FetchPart{}, *pair.one.fetch(2, name));
}

TEST_P(RangesOverEachTransport, FetchesManyRangesConcurrently) {
  std::mt19937_64 random(11);
  std::vector<std::pair<FetchPart, std::shared_ptr<MemorySink>>> fetches;
  for (int i = 0; i < 100; ++i) {  // far more than are served at once
    const std::uint64_t first_byte = random() % (piece_bytes + 1000);
    const FetchPart part{first_byte, random() % (random() % 2 == 0 ? 1000 : 2 * chunk), random() % 4 == 0};
    fetches.emplace_back(part, fetch(part));
  }
  for (const auto& [part, sink] : fetches) expect_part(part, *sink);
}

TEST_P(RangesOverEachTransport, AdjacentRangesMakeUpThePiece) {
  constexpr std::uint64_t range_bytes = 300'007;
  std::vector<std::shared_ptr<MemorySink>> sinks;
  for (std::uint64_t at = 0; at < piece_bytes; at += range_bytes) sinks.push_back(fetch({at, range_bytes, false}));
  std::vector<std::byte> together;
  for (const auto& sink : sinks) {
    ASSERT_EQ(sink->end(), FetchEnd::complete);
    together.insert(together.end(), sink->data.begin(), sink->data.end());
  }
  EXPECT_TRUE(together == piece);
}

TEST(Ranges, ReportAMissingPiece) {
  Pair pair;
  pair.two.serves(name, pattern(1000, 1), "");
  EXPECT_EQ(pair.one.fetch(2, {"layers", 8}, FetchPart{0, 0, true})->end(), FetchEnd::not_there);
  EXPECT_EQ(pair.one.fetch(2, {"layers", 8}, FetchPart{0, 10, false})->end(), FetchEnd::not_there);
}

TEST(Ranges, AreRefusableByTheSink) {
  Pair pair;
  pair.two.serves(name, pattern(5 * chunk, 1), "");
  const auto sink = std::make_shared<MemorySink>(2 * chunk - 1);
  pair.one.transport->fetch(2, name, {chunk, 2 * chunk, false}, sink, 25000);
  EXPECT_EQ(sink->end(), FetchEnd::refused);
  EXPECT_EQ(sink->received_bytes, 0u);
}

// Else the manifest of a piece that is fetched range by range travels as often as there are ranges.
TEST(Ranges, IgnoreAnUnwantedManifest) {
  Transport::Handlers handlers;
  const auto data = pattern(1000, 1);
  const std::vector<std::byte> too_large((64u << 20) + 1);
  handlers.serve = [&](const Asker&, const PieceName&) { return ServedPiece{too_large, data, nullptr}; };
  const auto source = Transport::create(loopback_options(2, 200), std::move(handlers));
  Node one(loopback_options(1, 100));
  one.transport->set_peer(2, 200, source->address());
  EXPECT_EQ(one.fetch(2, name, FetchPart{0, 10, true})->end(), FetchEnd::refused);
  EXPECT_EQ(one.fetch(2, name, FetchPart{0, 10, false})->end(), FetchEnd::complete);
}

}  // namespace
}  // namespace ckpt::net::testing
