// The listener, beset by unauthenticated peers.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "base/error.hpp"
#include "listener_support.hpp"
#include "net/listener.hpp"

namespace ckpt::net::testing {
namespace {

constexpr char place[] = "127.0.0.1:4242";

ListenerOptions on_loopback() {
  ListenerOptions options;
  options.listen_on = local_address("lo");
  options.timeout_ms = std::chrono::milliseconds(wait_limit).count();
  return options;
}

struct House {
  explicit House(const Identity& self = member(1, 100), const ListenerOptions& options = on_loopback())
      : listener(
            self, options, place, pending_connections,
            [this](UniqueFd connection) { members.put(std::make_shared<UniqueFd>(std::move(connection))); },
            [this](const std::string& remark) { remarks.put(remark); }) {}

  // What a member who comes to this listener is told, through a listener of his own.
  Listener::DialResult visited_by(Listener& member) {
    Mailbox<Listener::DialResult> ends;
    member.dial(1, 100, listener.address(), [&ends](const Listener::DialResult& end) { ends.put(end); });
    const auto seen = ends.wait_for(1);
    return seen.empty() ? Listener::DialResult{} : seen[0];
  }
  bool lets_in(const Identity& who) { return dial(listener.address(), who).session().has_value(); }
  void await_unauthenticated_peers(std::uint64_t count) const {
    const auto deadline = std::chrono::steady_clock::now() + wait_limit;
    while (listener.unauthenticated_peers().count < count && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
  }

  Mailbox<std::string> remarks;
  Mailbox<std::shared_ptr<UniqueFd>> members;
  PendingConnections pending_connections;
  Listener listener;
};

std::vector<std::byte> opening() { return Asking(member(9, 900), 1, 100, nonce_of(7)).opening(); }

std::string source(int number) {
  return "127.1." + std::to_string(number / 250) + "." + std::to_string(number % 250 + 1) + ":0";
}

TEST(Listener, MemberLearnsTheTransportsAddressAndIsExpectedThere) {
  House house;
  House other(member(9, 900));
  const auto on_dialed = house.visited_by(other.listener);
  ASSERT_TRUE(on_dialed.session);
  EXPECT_EQ(on_dialed.place, place);
  wire::Hello hello;
  prove(*on_dialed.session, Side::asker, hello);
  const auto pending_connection = house.pending_connections.arrived(hello);
  ASSERT_TRUE(pending_connection);
  EXPECT_EQ(pending_connection->peer, 9u);
  EXPECT_EQ(house.listener.unauthenticated_peers().count, 0u);
}

TEST(Listener, BothSidesKeepTheConnectionOfAMember) {
  House house;
  House other(member(9, 900));
  const auto on_dialed = house.visited_by(other.listener);
  const auto kept = house.members.wait_for(1);
  ASSERT_EQ(kept.size(), 1u);
  ASSERT_TRUE(*on_dialed.connection);
  const char sent = 'x';
  char received = 0;
  ASSERT_EQ(::send(on_dialed.connection->get(), &sent, 1, MSG_NOSIGNAL), 1);
  pollfd entry{kept[0]->get(), POLLIN, 0};
  ASSERT_EQ(::poll(&entry, 1, static_cast<int>(std::chrono::milliseconds(wait_limit).count())), 1);
  ASSERT_EQ(::recv(kept[0]->get(), &received, 1, 0), 1);
  EXPECT_EQ(received, sent);
}

TEST(Listener, DoesNotKeepTheConnectionOfAnUnauthenticatedPeer) {
  House house;
  Identity unauthenticated_peer = member(9, 900);
  unauthenticated_peer.token = "another token";
  EXPECT_FALSE(house.lets_in(unauthenticated_peer));
  house.await_unauthenticated_peers(1);
  EXPECT_TRUE(house.lets_in(member(9, 900)));
  EXPECT_EQ(house.members.wait_for(1).size(), 1u);
  EXPECT_EQ(house.members.count(), 1u);
}

TEST(Listener, RevealsTheAddressOnlyToHoldersOfTheToken) {
  House house;
  Identity unauthenticated_peer = member(9, 900);
  for (const std::string& token : {std::string(), std::string("test toke"), std::string("test token ")}) {
    unauthenticated_peer.token = token;
    const auto asking = dial(house.listener.address(), unauthenticated_peer);
    EXPECT_EQ(asking.refusal(), Refusal::token);
    EXPECT_FALSE(asking.session());
  }
  house.await_unauthenticated_peers(3);
  EXPECT_EQ(house.listener.unauthenticated_peers().count, 3u);
  EXPECT_NE(house.listener.unauthenticated_peers().last.find("does not have the job's token"), std::string::npos);
}

TEST(Listener, NamesAPeerWithAnotherTokenOnce) {
  House house;
  Identity unauthenticated_peer = member(9, 900);
  unauthenticated_peer.token = "another token";
  House other(unauthenticated_peer);
  for (int i = 0; i < 3; ++i) {
    const auto on_dialed = house.visited_by(other.listener);
    EXPECT_FALSE(on_dialed.session);
    EXPECT_EQ(on_dialed.end, FetchEnd::peer_failed);
  }
  const auto remarks = other.remarks.wait_for(1);
  ASSERT_EQ(remarks.size(), 1u);
  EXPECT_NE(remarks[0].find("do not have the same token"), std::string::npos);
  EXPECT_NE(remarks[0].find(house.listener.address()), std::string::npos);
}

TEST(Listener, DoesNotStartWithoutAToken) {
  Identity self = member(1, 100);
  self.token = "";
  EXPECT_THROW(House house(self), Failure);
}

TEST(Listener, FailsIfThePortIsTaken) {
  House house;
  ListenerOptions options = on_loopback();
  options.listen_on = *parse_socket_address(house.listener.address());
  EXPECT_THROW(House another(member(2, 200), options), Failure);
}

Reach reach_of(const std::string& address) {
  ListenerOptions options = on_loopback();
  options.timeout_ms = 300;
  House other(member(9, 900), options);
  Mailbox<Listener::DialResult> ends;
  other.listener.dial(1, 100, address, [&ends](const Listener::DialResult& end) { ends.put(end); });
  const auto seen = ends.wait_for(1);
  return seen.empty() ? Reach::unknown : seen[0].reach;
}

// A listener that nobody serves: the kernel takes connections for it, until a few more than `waiting` of them wait.
struct DeafListener {
  explicit DeafListener(int waiting) {
    fd.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    SocketAddress at = *parse_socket_address("127.0.0.1:0");
    EXPECT_EQ(::bind(fd.get(), at.get(), at.size_bytes), 0);
    EXPECT_EQ(::listen(fd.get(), waiting), 0);
    at.size_bytes = sizeof at.storage;
    EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at.storage), &at.size_bytes), 0);
    address = to_text(at);
  }
  UniqueFd fd;
  std::string address;
};

TEST(Listener, ProbeDistinguishesStoppedEndedAndUnreachableAgents) {
  House house;
  EXPECT_EQ(reach_of(house.listener.address()), Reach::answers);
  const DeafListener stopped(8);
  EXPECT_EQ(reach_of(stopped.address), Reach::silent);
  std::string ended;
  {
    const DeafListener gone(8);
    ended = gone.address;
  }
  EXPECT_EQ(reach_of(ended), Reach::ended);
  // A connection that finds the queue full hears nothing at all, as from a machine that does not exist.
  const DeafListener full(0);
  const Connection first(full.address);
  EXPECT_EQ(reach_of(full.address), Reach::unreachable);
}

TEST(Listener, SurvivesHandshakesThatBreakOffAnywhere) {
  House house;
  const auto words = opening();
  for (std::size_t size = 0; size <= words.size(); ++size) {
    for (const bool reset : {false, true}) {
      Connection broken(house.listener.address());
      broken.send(std::span(words).first(size));
      broken.end(reset);
    }
  }
  house.await_unauthenticated_peers(2 * words.size());
  EXPECT_EQ(house.pending_connections.arrived({}), std::nullopt);
  EXPECT_TRUE(house.lets_in(member(9, 900)));
}

TEST(Listener, DoesNotAnswerNoise) {
  House house;
  std::mt19937_64 random(11);
  for (int i = 0; i < 100; ++i) {
    std::vector<std::byte> noise(8 + random() % 5000);
    for (auto& byte : noise) byte = static_cast<std::byte>(random());
    Connection hostile(house.listener.address());
    hostile.send(noise);
    EXPECT_TRUE(hostile.receive(1).empty());
  }
  EXPECT_EQ(house.listener.unauthenticated_peers().count, 100u);
  EXPECT_NE(house.listener.unauthenticated_peers().last.find("does not speak the protocol"), std::string::npos);
  EXPECT_TRUE(house.lets_in(member(9, 900)));
}

TEST(Listener, RefusesAPeerThatSendsTooMuch) {
  House house;
  auto words = opening();
  words.resize(2'000'000);
  Connection talker(house.listener.address());
  talker.send(words);
  EXPECT_TRUE(talker.ends());
  EXPECT_EQ(house.listener.unauthenticated_peers().count, 1u);
  EXPECT_TRUE(house.lets_in(member(9, 900)));
}

TEST(Listener, DropsSlowPeersAfterTheDeadline) {
  ListenerOptions options = on_loopback();
  options.timeout_ms = 200;
  House house(member(1, 100), options);
  const auto words = opening();
  Connection slow(house.listener.address()), mute(house.listener.address());
  pollfd entry{slow.fd(), POLLIN, 0};
  for (std::size_t said = 0; said < words.size() && ::poll(&entry, 1, 10) == 0; ++said)
    slow.send(std::span(words).subspan(said, 1));
  EXPECT_TRUE(slow.receive(1).empty());
  EXPECT_TRUE(mute.ends());
  house.await_unauthenticated_peers(2);
  EXPECT_EQ(house.listener.unauthenticated_peers().count, 2u);
}

TEST(Listener, BoundsHalfOpenConnections) {
  ListenerOptions options = on_loopback();
  options.half_open_max = 64;
  House house(member(1, 100), options);
  constexpr std::size_t count = 1000;
  std::vector<Connection> half_open;
  for (int i = 0; i < static_cast<int>(count); ++i) half_open.emplace_back(house.listener.address(), source(i));
  house.await_unauthenticated_peers(count - options.half_open_max);
  const auto is_open = [](const Connection& connection) {
    pollfd entry{connection.fd(), POLLIN, 0};
    return ::poll(&entry, 1, 0) == 0;
  };
  EXPECT_LE(std::count_if(half_open.begin(), half_open.end(), is_open), 64);
  EXPECT_TRUE(house.lets_in(member(9, 900)));
}

TEST(Listener, StaysOpenToOthersDuringAFloodFromOneSource) {
  House house;
  House other(member(9, 900));
  std::atomic<bool> over{false};
  std::vector<std::thread> flood;
  for (int i = 0; i < 2; ++i) {
    flood.emplace_back([&, i] {
      const auto words = opening();
      for (int n = 0; !over; ++n) {
        Connection connection(house.listener.address(), "127.2.0." + std::to_string(i + 1) + ":0");
        connection.send(std::span(words).first(static_cast<std::size_t>(n) % words.size()));
        connection.end(true);
      }
    });
  }
  house.await_unauthenticated_peers(1000);
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(house.visited_by(other.listener).session) << i;
  over = true;
  for (auto& thread : flood) thread.join();
}

TEST(Listener, LimitsConnectionsPerSource) {
  ListenerOptions options = on_loopback();
  options.source_burst = 5;
  options.source_per_s = 1e-6;
  House house(member(1, 100), options);
  int let_in = 0;
  for (int i = 0; i < 20; ++i)
    let_in += dial(Connection(house.listener.address(), "127.3.0.1:0"), member(9, 900), 1, 100).session() ? 1 : 0;
  EXPECT_EQ(let_in, 5);
  EXPECT_TRUE(dial(Connection(house.listener.address(), "127.3.0.2:0"), member(9, 900), 1, 100).session());
  EXPECT_EQ(house.listener.unauthenticated_peers().count, 15u);
}

TEST(Listener, ReportsManyUnauthenticatedPeersInOneRemark) {
  House house;
  Identity unauthenticated_peer = member(9, 900);
  unauthenticated_peer.token = "another token";
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(house.lets_in(unauthenticated_peer));
  const auto remarks = house.remarks.wait_for(1);
  ASSERT_EQ(remarks.size(), 1u);
  EXPECT_NE(remarks[0].find("turned 20 connections away"), std::string::npos) << remarks[0];
}

TEST(Listener, DialGivesUpAHostThatDoesNotAnswer) {
  ListenerOptions options = on_loopback();
  options.timeout_ms = 200;
  House house(member(1, 100), options);
  const Connection nothing("127.0.0.1:1");
  const UniqueFd mute(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress address = *parse_socket_address("127.0.0.1:0");
  ASSERT_EQ(::bind(mute.get(), address.get(), address.size_bytes), 0);
  ASSERT_EQ(::listen(mute.get(), 16), 0);
  ASSERT_EQ(::getsockname(mute.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.size_bytes), 0);
  Mailbox<FetchEnd> ends;
  const auto on_end = [&ends](const Listener::DialResult& on_dialed) {
    EXPECT_FALSE(on_dialed.session);
    ends.put(on_dialed.end);
  };
  for (const std::string& host : {to_text(address), std::string("127.0.0.1:1"), std::string("no address")}) {
    const std::size_t before = ends.count();
    house.listener.dial(2, 200, host, on_end);
    ends.wait_for(before + 1);
  }
  EXPECT_EQ(ends.wait_for(3),
            (std::vector<FetchEnd>{FetchEnd::timed_out, FetchEnd::peer_failed, FetchEnd::peer_failed}));
}

}  // namespace
}  // namespace ckpt::net::testing
