// Connections to UCX that end, or begin, at the worst moment: while they are being made, while their listener is taken
// down.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <poll.h>
#include <sys/socket.h>

#include <thread>

#include "listener_support.hpp"
#include "net/port_guard.hpp"
#include "net/ucx_link.hpp"

namespace ckpt::net::testing {
namespace {

using Bytes = std::vector<std::byte>;

// Transports that are UCX's.
constexpr char by_ucx[] = "tcp,cma";

class NoEvents final : public UcxEvents {
  void arrived(wire::Kind, ucp_ep_h, Arrival&) override {}
  void connection_requested(ucp_conn_request_h) override {}
};

// What UCX sends to begin a connection.
Bytes greeting() {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress address = *parse_socket_address("127.0.0.1:0");
  auto* bound = reinterpret_cast<sockaddr*>(&address.storage);
  if (::bind(listener.get(), bound, address.size_bytes) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), bound, &address.size_bytes) != 0) {
    throw std::runtime_error("cannot listen");
  }
  UniqueFd accepted;
  {
    NoEvents events;
    std::size_t failures = 0;
    Ucx ucx(loopback_options(9, 900, by_ucx), events);
    const auto link = std::make_shared<UcxLink>(ucx, true, failures);
    if (!link->open(to_text(address), UniqueFd())) throw std::runtime_error("cannot connect");
    accepted.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    pollfd readable{accepted.get(), POLLIN, 0};
    const auto deadline = std::chrono::steady_clock::now() + wait_limit;
    while (::poll(&readable, 1, 0) == 0 && std::chrono::steady_clock::now() < deadline) ucx.progress();
    link->close();
  }
  Bytes bytes(65536);
  std::size_t size = 0;
  for (ssize_t got = 1; got > 0; size += static_cast<std::size_t>(std::max<ssize_t>(got, 0))) {
    got = ::recv(accepted.get(), bytes.data() + size, bytes.size() - size, 0);
  }
  bytes.resize(size);
  return bytes;
}

std::vector<Connection> connections(std::size_t count, const std::string& to, std::span<const std::byte> beginning) {
  std::vector<Connection> result;
  for (std::size_t i = 0; i < count; ++i) {
    result.emplace_back(to);
    result.back().send(beginning);
  }
  return result;
}

// Overwrites freed memory, so that any use of it fails.
class Listener : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ::mallopt(M_PERTURB, 165); }
  static void TearDownTestSuite() { ::mallopt(M_PERTURB, 0); }
  const Bytes greeting_ = greeting();
};

TEST_F(Listener, SurvivesHalfOpenConnections) {
  const auto most = std::span(greeting_).first(greeting_.size() - 1);
  for (int round = 0; round < 50; ++round) {
    auto transport = Transport::create(loopback_options(1, 100, by_ucx), {});
    const auto address = ucx_address_behind(transport->address());
    const auto half_made = connections(64, address, most);
    std::thread finisher([&] {
      while (Connection(address).made()) {
      }
      for (const auto& connection : half_made) connection.send(std::span(greeting_).last(1));
    });
    transport.reset();
    finisher.join();
  }
}

TEST_F(Listener, MayEndWhileConnectionsArrive) {
  const auto most = std::span(greeting_).first(greeting_.size() - 1);
  for (int round = 0; round < 50; ++round) {
    auto transport = Transport::create(loopback_options(1, 100, by_ucx), {});
    const auto half_made = connections(200, ucx_address_behind(transport->address()), most);
    std::thread finisher([&] {
      for (const auto& connection : half_made) connection.send(std::span(greeting_).last(1));
    });
    transport.reset();
    finisher.join();
  }
}

// Whether a connection from there is made within that time.
bool reaches(const std::string& from, const std::string& to, std::chrono::milliseconds within) {
  const auto source = *parse_socket_address(from), target = *parse_socket_address(to);
  const UniqueFd fd(::socket(source.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::bind(fd.get(), source.get(), source.size_bytes) != 0) throw std::runtime_error("cannot bind");
  if (::connect(fd.get(), target.get(), target.size_bytes) == 0) return true;
  pollfd made{fd.get(), POLLOUT, 0};
  return ::poll(&made, 1, static_cast<int>(within.count())) == 1 && (made.revents & (POLLERR | POLLHUP)) == 0;
}

// Of the family, on loopback; nothing where the machine has none of it.
UniqueFd plain_listener(SocketAddress& address) {
  UniqueFd listener(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  auto* bound = reinterpret_cast<sockaddr*>(&address.storage);
  if (!listener || ::bind(listener.get(), bound, address.size_bytes) != 0 || ::listen(listener.get(), 8) != 0 ||
      ::getsockname(listener.get(), bound, &address.size_bytes) != 0)
    return {};
  return listener;
}

TEST(PortGuard, RestrictsASocketToAdmittedHosts) {
  for (const std::string host : {"127.0.0.1", "[::1]"}) {
    SocketAddress address = *parse_socket_address(host + ":0");
    const UniqueFd listener = plain_listener(address);
    if (!listener && host == "[::1]") continue;
    ASSERT_TRUE(listener);
    const auto target = to_text(address);
    PortGuard guard(address);
    if (!guard.stands()) GTEST_SKIP() << "this kernel refuses filters to users other than root";
    EXPECT_FALSE(reaches(host + ":0", target, std::chrono::milliseconds(300))) << host;
    for (const std::string other : {"192.0.2.1:1", "[fd00::1]:1", "[::2]:1"}) guard.admit(*parse_socket_address(other));
    EXPECT_FALSE(reaches(host + ":0", target, std::chrono::milliseconds(300))) << host;
    guard.admit(*parse_socket_address(host + ":4242"));
    EXPECT_TRUE(reaches(host + ":0", target, wait_limit)) << host;
  }
}

TEST_F(Listener, AcceptsOnlyAuthenticatedAddresses) {
  Node node(loopback_options(1, 100, by_ucx));
  if (node.transport->description().find("open to unauthenticated peers") != std::string::npos)
    GTEST_SKIP() << "this kernel refuses filters to users other than root";
  const auto handshake_listener = node.transport->address();
  const auto address = ucx_address_behind(handshake_listener);
  EXPECT_TRUE(reaches("127.0.0.1:0", address, wait_limit));
  EXPECT_FALSE(reaches("127.9.0.1:0", address, std::chrono::milliseconds(300)));
  ASSERT_TRUE(dial(Connection(handshake_listener, "127.9.0.1:0"), member(9, 900), 1, 100).session());
  EXPECT_TRUE(reaches("127.9.0.1:0", address, wait_limit));
  EXPECT_FALSE(reaches("127.9.0.2:0", address, std::chrono::milliseconds(300)));
}

// More than are kept at a time.
TEST_F(Listener, AcceptsTheLastOfManyAuthenticatedAddresses) {
  Node node(loopback_options(1, 100, by_ucx));
  if (node.transport->description().find("open to unauthenticated peers") != std::string::npos)
    GTEST_SKIP() << "this kernel refuses filters to users other than root";
  const auto handshake_listener = node.transport->address();
  std::string address;
  for (int host = 1; host <= 300; ++host) {
    const auto from = "127.9." + std::to_string(host / 250) + "." + std::to_string(host % 250 + 1) + ":0";
    const auto on_dialed = dial(Connection(handshake_listener, from), member(9, 900), 1, 100);
    ASSERT_TRUE(on_dialed.session()) << host;
    address = on_dialed.place();
    if (host % 50 != 0) continue;
    EXPECT_TRUE(reaches(from, address, wait_limit)) << host;
  }
  EXPECT_FALSE(reaches("127.9.0.2:0", address, std::chrono::milliseconds(300))) << "the first has made room";
}

TEST_F(Listener, ContinuesWhenConnectionsBreakOffAnywhere) {
  Node node(loopback_options(1, 100, by_ucx));
  const auto address = ucx_address_behind(node.transport->address());
  for (std::size_t size = 0; size <= greeting_.size(); ++size) {
    for (const bool reset : {false, true}) {
      for (auto& connection : connections(8, address, std::span(greeting_).first(size))) connection.end(reset);
    }
  }
  Node friendly(loopback_options(2, 200, by_ucx));
  friendly.knows(node);
  node.serves({"alive", 1}, pattern(3'000'000, 5), "");
  EXPECT_EQ(friendly.fetch(1, {"alive", 1})->end(), FetchEnd::complete);
}

}  // namespace
}  // namespace ckpt::net::testing
