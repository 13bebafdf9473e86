// Connections to UCX that end, or begin, at the worst moment: while they are being made, while their listener is taken
// down.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <poll.h>
#include <sys/socket.h>

#include <thread>

#include "door_support.hpp"
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
    const auto deadline = std::chrono::steady_clock::now() + patience;
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

// Freed memory is overwritten, so that whoever uses it falls.
class Listener : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ::mallopt(M_PERTURB, 165); }
  static void TearDownTestSuite() { ::mallopt(M_PERTURB, 0); }
  const Bytes greeting_ = greeting();
};

TEST_F(Listener, IsSurvivedByConnectionsThatAreHalfMade) {
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

TEST_F(Listener, MayEndWhileConnectionsComeIn) {
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

TEST_F(Listener, WorksOnWhenConnectionsBreakOffAnywhere) {
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
