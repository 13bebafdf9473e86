#include "net/wire.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "net/socket_address.hpp"

namespace ckpt::net::wire {
namespace {

TEST(Wire, DecodesAnEncodedHeader) {
  Hello hello;
  hello.job_hash = job_hash("job");
  hello.from_node = 7;
  hello.to_instance = 0x0123456789abcdef;
  const auto decoded = decode<Hello>(bytes_of(hello));
  ASSERT_TRUE(decoded);
  EXPECT_TRUE(plausible(*decoded));
  EXPECT_EQ(decoded->job_hash, job_hash("job"));
  EXPECT_EQ(decoded->from_node, 7u);
  EXPECT_EQ(decoded->to_instance, 0x0123456789abcdefu);
}

TEST(Wire, EncodesLittleEndianWithoutPadding) {
  const Chunk chunk{0x0102030405060708, 0x1112131415161718};
  const auto bytes = bytes_of(chunk);
  const unsigned char expected[] = {8, 7, 6, 5, 4, 3, 2, 1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11};
  ASSERT_EQ(bytes.size(), sizeof expected);
  EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof expected), 0);
  FetchRequest request;
  request.request = 1;
  request.checkpoint = 2;
  request.first_byte = 0x1112131415161718;
  request.size_bytes = 0x2122232425262728;
  request.shard_bytes = 5;
  request.wishes = wants_manifest;
  request.chain = 0x3132333435363738;
  const unsigned char expected_request[] = {1,    0,    0,    0,    0,    0,    0,    0,      // request
                                            2,    0,    0,    0,    0,    0,    0,    0,      // checkpoint
                                            0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,   // first_byte
                                            0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,   // size_bytes
                                            5,    0,    0,    0,    1,    0,    0,    0,      // shard_bytes, wishes
                                            0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31};  // chain
  ASSERT_EQ(bytes_of(request).size(), sizeof expected_request);
  EXPECT_EQ(std::memcmp(bytes_of(request).data(), expected_request, sizeof expected_request), 0);
  const Hello hello;
  const unsigned char expected_hello[] = {'C', 'K', 'P', 'N', 17, 0, 0, 0};  // magic, version
  EXPECT_EQ(std::memcmp(bytes_of(hello).data(), expected_hello, sizeof expected_hello), 0);
}

template <class T>
void only_its_own_size_decodes() {
  const std::vector<std::byte> bytes(96);
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    EXPECT_EQ(decode<T>(std::span(bytes).first(size)).has_value(), size == sizeof(T));
  }
}

TEST(Wire, DecodesOnlyTheExactSize) {
  only_its_own_size_decodes<Hello>();
  only_its_own_size_decodes<FetchRequest>();
  only_its_own_size_decodes<FetchAnswer>();
  only_its_own_size_decodes<Control>();
  only_its_own_size_decodes<Chunk>();
}

TEST(Wire, AnotherMagicOrVersionIsNotPlausible) {
  Hello hello;
  hello.magic ^= 1;
  EXPECT_FALSE(plausible(hello));
  hello = {};
  hello.version += 1;
  EXPECT_FALSE(plausible(hello));
}

TEST(Wire, OversizedFieldsAreNotPlausible) {
  FetchRequest request;
  request.shard_bytes = shard_name_bytes_max;
  EXPECT_TRUE(plausible(request, shard_name_bytes_max));
  EXPECT_FALSE(plausible(request, shard_name_bytes_max - 1));
  request.shard_bytes += 1;
  EXPECT_FALSE(plausible(request, shard_name_bytes_max + 1));
  request.shard_bytes = 5;
  for (const std::uint32_t wishes : {0u, wants_manifest, is_urgent, wants_manifest | is_urgent}) {
    request.wishes = wishes;
    EXPECT_TRUE(plausible(request, 5));
  }
  request.wishes = 4;
  EXPECT_FALSE(plausible(request, 5));

  FetchAnswer answer;
  answer.chunk_bytes = grain_bytes;
  answer.manifest_bytes = manifest_bytes_max;
  EXPECT_TRUE(plausible(answer, manifest_bytes_max));
  answer.manifest_bytes += 1;
  EXPECT_FALSE(plausible(answer, manifest_bytes_max + 1));
  answer.manifest_bytes = 0;
  answer.chunk_bytes = 0;
  EXPECT_FALSE(plausible(answer, 0));
  answer.status = static_cast<Status>(4);
  EXPECT_FALSE(plausible(answer, 0));
}

TEST(Wire, AcceptsAnyRangeAndCutsItAtThePiecesEnd) {
  const std::vector<std::byte> piece(100);
  const auto cut = [&](std::uint64_t first_byte, std::uint64_t size_bytes) {
    FetchRequest request;
    request.first_byte = first_byte;
    request.size_bytes = size_bytes;
    EXPECT_TRUE(plausible(request, 0));
    const auto range = range_of(request, piece);
    return std::pair(range.data() - piece.data(), range.size());
  };
  using Cut = std::pair<std::ptrdiff_t, std::size_t>;
  EXPECT_EQ(cut(0, UINT64_MAX), Cut(0, 100));
  EXPECT_EQ(cut(0, 10), Cut(0, 10));
  EXPECT_EQ(cut(40, 20), Cut(40, 20));
  EXPECT_EQ(cut(90, 10), Cut(90, 10));
  EXPECT_EQ(cut(90, 11), Cut(90, 10));
  EXPECT_EQ(cut(99, UINT64_MAX), Cut(99, 1));
  EXPECT_EQ(cut(50, UINT64_MAX - 49), Cut(50, 50));  // where the range's end is just past 64 bits
  EXPECT_EQ(cut(50, UINT64_MAX - 20), Cut(50, 50));
  EXPECT_EQ(cut(40, 0).second, 0u);
  for (const std::uint64_t first_byte : {std::uint64_t{100}, std::uint64_t{101}, UINT64_MAX}) {
    for (const std::uint64_t size_bytes : {std::uint64_t{0}, std::uint64_t{1}, UINT64_MAX}) {
      EXPECT_EQ(cut(first_byte, size_bytes).second, 0u) << first_byte << " " << size_bytes;
    }
  }
}

TEST(Wire, RejectsAnAnswerLongerThanTheRequest) {
  FetchRequest request;
  request.first_byte = 1000;
  request.size_bytes = 500;
  FetchAnswer answer;
  answer.data_bytes = 500;
  answer.manifest_bytes = 20;
  EXPECT_TRUE(within(answer, request));
  answer.data_bytes = 501;
  EXPECT_FALSE(within(answer, request));
  answer.data_bytes = 0;
  EXPECT_TRUE(within(answer, request));
  request.wishes = 0;
  EXPECT_FALSE(within(answer, request));
  answer.manifest_bytes = 0;
  EXPECT_TRUE(within(answer, request));
}

TEST(Wire, AcceptsOnlyChunksOfWholeGrainsWithinThePiece) {
  std::mt19937_64 random(1);
  std::size_t plausible_ones = 0;
  for (int i = 0; i < 200'000; ++i) {
    const std::size_t chunk_bytes = grain_bytes * (1 + random() % 3) + random() % 3;
    const std::size_t data_bytes = random() % (4 * grain_bytes);
    Chunk chunk;
    chunk.offset = random() % 4 == 0 ? random() : grain_bytes * (random() % 6);
    const std::size_t payload_bytes =
        random() % 2 == 0 ? grain_bytes * (random() % 4) : data_bytes % (grain_bytes * (1 + random() % 3));
    if (!plausible(chunk, payload_bytes, data_bytes, chunk_bytes)) continue;
    ++plausible_ones;
    ASSERT_GT(payload_bytes, 0u);
    ASSERT_LT(chunk.offset, data_bytes);
    ASSERT_LE(payload_bytes, data_bytes - chunk.offset);
    ASSERT_LE(payload_bytes, chunk_bytes);
    ASSERT_EQ(chunk.offset % grain_bytes, 0u);
    ASSERT_TRUE(payload_bytes % grain_bytes == 0 || chunk.offset + payload_bytes == data_bytes);
    ASSERT_LE(chunk.offset / grain_bytes + grain_count(payload_bytes), grain_count(data_bytes));
  }
  EXPECT_GT(plausible_ones, 1000u);
}

TEST(SocketAddress, SurvivesConversionToTextAndBack) {
  for (const std::string text : {"127.0.0.1:1", "192.0.2.7:65535", "[::1]:40123", "[fd00::2]:80"}) {
    const auto address = parse_socket_address(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(to_text(*address), text);
  }
}

TEST(SocketAddress, RefusesInvalidTexts) {
  for (const std::string text : {"", ":", ":1", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:1x", "[::1:1",
                                 "::1:1", "[::1]1", "[]:1", "localhost:1", "127.0.0.1:-1", "[:1"}) {
    EXPECT_FALSE(parse_socket_address(text)) << text;
  }
}

TEST(SocketAddress, UsesTheNamedInterface) {
  EXPECT_EQ(to_text(local_address("lo")), "127.0.0.1:0");
  EXPECT_NE(local_address("").size_bytes, 0u);
}

TEST(SocketAddress, UsesTheFirstListedInterfaceWithAnAddress) {
  for (const std::string list : {"mlx5_0:1,lo", "lo,mlx5_0:1", "no-such,lo,mlx5_0:1"})
    EXPECT_EQ(to_text(local_address(list)), "127.0.0.1:0") << list;
  EXPECT_EQ(to_text(local_address("mlx5_0:1")), to_text(local_address("")));
  EXPECT_TRUE(address_on("lo"));
  EXPECT_FALSE(address_on("no-such"));
}

}  // namespace
}  // namespace ckpt::net::wire
