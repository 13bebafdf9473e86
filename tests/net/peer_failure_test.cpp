// One peer dies, freezes or is not who it should be; the others must not notice.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>

#include "child_process.hpp"
#include "net/socket_address.hpp"
#include "net_support.hpp"

namespace ckpt::net::testing {
namespace {

constexpr std::size_t big_bytes = 32u << 20;
constexpr std::int64_t impatient_ms = 1000;

// A node in another process.
class RemoteNode : public ChildProcess {
 public:
  RemoteNode(PeerId node, std::uint64_t instance, const std::string& transports)
      : ChildProcess(
            {NET_TEST_PEER, std::to_string(node), std::to_string(instance), transports, std::to_string(big_bytes)}),
        node_(node),
        instance_(instance),
        address_(read_line()) {}
  void known_to(Node& node) const { node.transport->set_peer(node_, instance_, address_); }

 private:
  const PeerId node_;
  const std::uint64_t instance_;
  const std::string address_;
};

// Acts on the transport's thread when the first chunk has arrived. Until it returns nothing more is received, and the
// source cannot be further ahead than its chunks in flight: the fetch is in its middle.
class ActingSink : public MemorySink {
 public:
  explicit ActingSink(std::function<void()> act) : act_(std::move(act)) {}
  void received(std::size_t offset_bytes, std::size_t size_bytes) override {
    MemorySink::received(offset_bytes, size_bytes);
    if (act_) std::exchange(act_, nullptr)();
  }

 private:
  std::function<void()> act_;
};

TransportOptions impatient_options(const std::string& transports) {
  auto options = loopback_options(1, 100, transports);
  options.progress_timeout_ms = impatient_ms;
  return options;
}

class OverEachTransport : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, OverEachTransport, ::testing::ValuesIn(each_transport),
                         [](const auto& tested) { return name_of(tested.param); });

TEST_P(OverEachTransport, KilledSourceEndsOnlyItsOwnFetch) {
  RemoteNode victim(2, 200, GetParam());
  Node node(loopback_options(1, 100, GetParam()));
  Node stable(loopback_options(3, 300, GetParam()));
  victim.known_to(node);
  node.knows(stable);
  const auto piece = pattern(48u << 20, 3);
  stable.serves({"stable", 1}, piece, "");

  auto doomed = std::make_shared<ActingSink>([&victim] { victim.kill_now(); });
  const auto safe = node.fetch(3, {"stable", 1});
  node.transport->fetch(2, {"big", 1}, doomed, 25000);

  const auto end = doomed->end();
  EXPECT_TRUE(end == FetchEnd::peer_failed || end == FetchEnd::timed_out) << static_cast<int>(end.value());
  EXPECT_LT(doomed->received_bytes, big_bytes);
  EXPECT_EQ(node.failures.wait_for(1), std::vector<PeerId>{2});
  ASSERT_EQ(safe->end(), FetchEnd::complete);
  EXPECT_TRUE(safe->data == piece);
  EXPECT_EQ(node.fetch(3, {"stable", 1})->end(), FetchEnd::complete);
  EXPECT_EQ(node.failures.count(), 1u);
}

TEST_P(OverEachTransport, KilledAskerFreesThePieceItRequested) {
  RemoteNode asker(2, 200, GetParam());
  const auto data = pattern(big_bytes, 1);
  Mailbox<int> freed;
  Mailbox<PeerId> failures;
  Transport::Handlers handlers;
  handlers.serve = [&](const Asker&, const PieceName&) {
    asker.kill_now();
    return ServedPiece{{}, data, std::shared_ptr<void>(nullptr, [&freed](void*) { freed.put(1); })};
  };
  handlers.peer_failed = [&failures](PeerId peer) { failures.put(peer); };
  const auto transport = Transport::create(loopback_options(1, 100, GetParam()), std::move(handlers));
  asker.write_line("1 100 " + transport->address());
  EXPECT_EQ(freed.wait_for(1).size(), 1u);
  EXPECT_EQ(failures.wait_for(1), std::vector<PeerId>{2});
}

TEST_P(OverEachTransport, FrozenSourceTimesOutAndWritesNothingAfterwards) {
  RemoteNode frozen(2, 200, GetParam());
  Node node(impatient_options(GetParam()));
  frozen.known_to(node);

  auto sink = std::make_shared<ActingSink>([&frozen] { frozen.stop_now(); });
  node.transport->fetch(2, {"big", 1}, sink, 25000);
  ASSERT_EQ(sink->end(), FetchEnd::timed_out);
  EXPECT_LT(sink->received_bytes, big_bytes);

  // The memory belongs to somebody else now.
  const auto other = pattern(big_bytes, 99);
  ASSERT_EQ(sink->data.size(), other.size());
  std::copy(other.begin(), other.end(), sink->data.begin());
  frozen.wake();
  // Once it has served this, it has also been through whatever it had left to send over the old connection.
  Node witness(loopback_options(3, 300, GetParam()));
  frozen.known_to(witness);
  ASSERT_EQ(witness.fetch(2, {"big", 1})->end(), FetchEnd::complete);
  EXPECT_TRUE(sink->data == other);
  EXPECT_TRUE(sink->in_order);
}

TEST_P(OverEachTransport, FrozenPeerDoesNotDelayAFetchBeyondItsTimeout) {
  RemoteNode frozen(2, 200, GetParam());
  Node node(loopback_options(1, 100, GetParam()));
  frozen.known_to(node);
  auto sink = std::make_shared<ActingSink>([&frozen] { frozen.stop_now(); });
  const auto started = std::chrono::steady_clock::now();
  node.transport->fetch(2, {"big", 1}, sink, 500);
  EXPECT_EQ(sink->end(), FetchEnd::timed_out);
  EXPECT_LT(std::chrono::steady_clock::now() - started, wait_limit);
}

// Listens, and never says a word.
TEST(PeerFailure, GivesUpAPeerThatNeverAnswers) {
  const int mute = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  SocketAddress address = *parse_socket_address("127.0.0.1:0");
  ASSERT_EQ(::bind(mute, address.get(), address.size_bytes), 0);
  ASSERT_EQ(::listen(mute, 16), 0);
  ASSERT_EQ(::getsockname(mute, reinterpret_cast<sockaddr*>(&address.storage), &address.size_bytes), 0);

  auto options = impatient_options("tcp");
  options.queue_limit = 2;
  Node node(options);
  node.transport->set_peer(2, 200, to_text(address));
  EXPECT_TRUE(node.transport->send(2, bytes_of("a")));
  EXPECT_TRUE(node.transport->send(2, bytes_of("b")));
  EXPECT_FALSE(node.transport->send(2, bytes_of("one too many")));
  const auto sink = node.fetch(2, {"big", 1});
  EXPECT_EQ(sink->end(), FetchEnd::timed_out);
  EXPECT_FALSE(sink->begun);
  EXPECT_EQ(node.failures.wait_for(1), std::vector<PeerId>{2});
  ::close(mute);
}

TEST(PeerFailure, FailsImmediatelyIfNoPeerIsThere) {
  Node node(loopback_options(1, 100));
  node.transport->set_peer(2, 200, "127.0.0.1:1");
  EXPECT_EQ(node.fetch(2, {"big", 1})->end(), FetchEnd::peer_failed);
  node.transport->set_peer(3, 300, "not an address");
  EXPECT_EQ(node.fetch(3, {"big", 1})->end(), FetchEnd::peer_failed);
  EXPECT_EQ(node.fetch(4, {"big", 1})->end(), FetchEnd::peer_failed);
  EXPECT_FALSE(node.transport->send(4, bytes_of("nobody")));
}

// What node 1 sees when it turns to node 2 at an address where `options` runs.
void expect_refused(const TransportOptions& options) {
  Node other(options);
  other.serves({"big", 1}, pattern(1000, 1), "");
  Node node(loopback_options(1, 100));
  node.transport->set_peer(2, 200, other.transport->address());
  node.transport->send(2, bytes_of("secret"));
  const auto sink = node.fetch(2, {"big", 1});
  EXPECT_EQ(sink->end(), FetchEnd::peer_failed);
  EXPECT_FALSE(sink->begun);
  EXPECT_EQ(other.messages.count(), 0u);
}

TEST(Identity, RefusesAnotherJob) {
  auto options = loopback_options(2, 200);
  options.job = "another job";
  expect_refused(options);
}

TEST(Identity, RefusesAnotherNodeAtTheSameAddress) { expect_refused(loopback_options(3, 200)); }

TEST(Identity, RefusesAnotherRunOfTheNode) { expect_refused(loopback_options(2, 201)); }

TEST(Identity, AcceptsTheRightPeer) {
  Pair pair;
  pair.two.serves({"big", 1}, pattern(1000, 1), "");
  EXPECT_EQ(pair.one.fetch(2, {"big", 1})->end(), FetchEnd::complete);
}

TEST(Identity, IgnoresTheOldRunOfAReplacedNode) {
  Node node(loopback_options(1, 100));
  Node old_run(loopback_options(2, 200));
  Node new_run(loopback_options(2, 201));
  node.serves({"piece", 1}, pattern(1000, 1), "");
  old_run.knows(node);
  new_run.knows(node);
  EXPECT_EQ(old_run.fetch(1, {"piece", 1})->end(), FetchEnd::complete);
  node.knows(new_run);
  EXPECT_EQ(new_run.fetch(1, {"piece", 1})->end(), FetchEnd::complete);
  EXPECT_EQ(old_run.fetch(1, {"piece", 1})->end(), FetchEnd::peer_failed);
}

TEST(Identity, ReachesARestartedPeerAtItsNewAddress) {
  Node node(loopback_options(1, 100));
  {
    Node old_run(loopback_options(2, 200));
    old_run.serves({"piece", 1}, pattern(1000, 1), "");
    node.knows(old_run);
    EXPECT_EQ(node.fetch(2, {"piece", 1})->end(), FetchEnd::complete);
  }
  EXPECT_NE(node.fetch(2, {"piece", 1})->end(), FetchEnd::complete);
  Node new_run(loopback_options(2, 201));
  new_run.serves({"piece", 1}, pattern(2000, 2), "");
  node.knows(new_run);
  const auto sink = node.fetch(2, {"piece", 1});
  EXPECT_EQ(sink->end(), FetchEnd::complete);
  EXPECT_TRUE(sink->data == pattern(2000, 2));
}

}  // namespace
}  // namespace ckpt::net::testing
