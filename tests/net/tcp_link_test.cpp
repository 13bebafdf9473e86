// Streams: frames that come in pieces, nonsense from members, memory that is read in place.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>

#include "listener_support.hpp"
#include "net/link_backend.hpp"

namespace ckpt::net::testing {
namespace {

// A member's connection to node 1, on which it says bytes of its choice.
struct Member9 {
  explicit Member9(const Node& node) : connection(node.transport->address()) {
    asking.emplace(dial(connection, member(9, 900), 1, 100));
  }
  std::vector<std::byte> frame(wire::Kind kind, std::span<const std::byte> header,
                               std::span<const std::byte> payload) const {
    struct {
      std::uint16_t kind, header_bytes;
      std::uint32_t in_place = 0;
      std::uint64_t payload_bytes;
    } head{kind, static_cast<std::uint16_t>(header.size()), 0, payload.size()};
    std::vector<std::byte> bytes(sizeof head + header.size() + payload.size());
    std::memcpy(bytes.data(), &head, sizeof head);
    std::copy(payload.begin(), payload.end(), std::copy(header.begin(), header.end(), bytes.begin() + sizeof head));
    return bytes;
  }
  std::vector<std::byte> hello() const {
    wire::Hello hello;
    hello.job_hash = wire::job_hash("test job");
    hello.from_node = 9;
    hello.from_instance = 900;
    hello.to_node = 1;
    hello.to_instance = 100;
    prove(*asking->session(), Side::asker, hello);
    return frame(wire::kind_hello, wire::bytes_of(hello), {});
  }
  std::vector<std::byte> message(std::span<const std::byte> payload) const {
    const std::uint64_t seal = seal_of(*asking->session(), Side::asker);
    return frame(wire::kind_message, wire::bytes_of(seal), payload);
  }

  Connection connection;
  std::optional<Asking> asking;
};

TEST(Stream, AcceptsFramesByteByByte) {
  Node node(loopback_options(1, 100));
  const Member9 peer(node);
  auto bytes = peer.hello();
  for (const std::size_t size : {0, 1, 100, 16384, 16385, 20000}) {
    const auto frame = peer.message(pattern(size, size));
    bytes.insert(bytes.end(), frame.begin(), frame.end());
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) ASSERT_TRUE(peer.connection.send(std::span(bytes).subspan(i, 1)));
  const auto received = node.messages.wait_for(6);
  ASSERT_EQ(received.size(), 6u);
  const std::size_t sizes[] = {0, 1, 100, 16384, 16385, 20000};
  for (std::size_t i = 0; i < 6; ++i) EXPECT_TRUE(received[i].second == pattern(sizes[i], sizes[i])) << sizes[i];
}

TEST(Stream, SkipsAnUnexpectedPayload) {
  Node node(loopback_options(1, 100));
  const Member9 peer(node);
  ASSERT_TRUE(peer.connection.send(peer.message(pattern(3'000'000, 1))));  // before the hello: not heard
  ASSERT_TRUE(peer.connection.send(peer.hello()));
  const wire::Chunk unasked{77, 0};
  auto header = std::vector<std::byte>(8);
  const std::uint64_t seal = seal_of(*peer.asking->session(), Side::asker);
  std::memcpy(header.data(), &seal, sizeof seal);
  const auto chunk = wire::bytes_of(unasked);
  header.insert(header.end(), chunk.begin(), chunk.end());
  ASSERT_TRUE(peer.connection.send(peer.frame(wire::kind_chunk, header, pattern(3'000'000, 2))));
  ASSERT_TRUE(peer.connection.send(peer.message(bytes_of("after all that"))));
  const auto received = node.messages.wait_for(1);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(text_of(received[0].second), "after all that");
}

TEST(Stream, InvalidFrameEndsOnlyItsConnection) {
  Node node(loopback_options(1, 100));
  Node friendly(loopback_options(2, 200));
  friendly.knows(node);
  node.serves({"alive", 1}, pattern(3'000'000, 5), "");
  for (int i = 0; i < 20; ++i) {
    const Member9 peer(node);
    const auto noise = pattern(4096, static_cast<std::uint64_t>(i));
    peer.connection.send(peer.hello());
    peer.connection.send(noise);
    const std::vector<std::byte> ones(64, std::byte{0xff});
    peer.connection.send(ones);
    EXPECT_TRUE(peer.connection.ends());
  }
  EXPECT_EQ(friendly.fetch(1, {"alive", 1})->end(), FetchEnd::complete);
}

TEST(Stream, DropsASilentMember) {
  auto options = loopback_options(1, 100);
  options.progress_timeout_ms = 300;
  Node node(options);
  const Member9 peer(node);
  EXPECT_TRUE(peer.connection.ends());
}

TEST(Stream, ReportsNodesWithDifferentTransports) {
  Node one(loopback_options(1, 100, "tcp"));
  Node two(loopback_options(2, 200, "tcp,cma"));
  two.serves({"piece", 1}, pattern(1000, 1), "");
  one.knows(two);
  two.knows(one);
  EXPECT_EQ(one.fetch(2, {"piece", 1})->end(), FetchEnd::peer_failed);
  EXPECT_EQ(two.fetch(1, {"piece", 1})->end(), FetchEnd::peer_failed);
  for (Node* node : {&one, &two}) {
    const auto remarks = node->remarks.wait_for(1);
    ASSERT_EQ(remarks.size(), 1u);
    EXPECT_NE(remarks[0].find("give both the same option transport"), std::string::npos);
  }
}

TEST(Stream, ConnectsNodesWithAndWithoutSharedMemoryReads) {
  Node one(loopback_options(1, 100, "tcp"));
  Node two(loopback_options(2, 200, "shm"));
  one.knows(two);
  two.knows(one);
  one.serves({"piece", 1}, pattern(3'000'000, 1), "");
  two.serves({"piece", 2}, pattern(3'000'000, 2), "");
  EXPECT_EQ(one.fetch(2, {"piece", 2})->end(), FetchEnd::complete);
  EXPECT_EQ(two.fetch(1, {"piece", 1})->end(), FetchEnd::complete);
}

}  // namespace
}  // namespace ckpt::net::testing
