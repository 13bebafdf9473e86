#include "agent/transfers/transport_port.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>

#include "tests/support/fake_transport.hpp"

namespace ckpt::agent {
namespace {

using ::testing::ElementsAre;

class Sink : public net::Sink {
 public:
  std::optional<std::span<std::byte>> begin(std::span<const std::byte>, std::size_t) override { return std::nullopt; }
  void received(std::size_t, std::size_t) override {}
  void ended(net::FetchEnd end) override { ends.push_back(end); }
  std::vector<net::FetchEnd> ends;
};

TEST(TransportPort, PassesCallsUntilClosedAndFailsLaterOnes) {
  test::FakeTransport transport;
  std::vector<net::PeerId> asked;
  transport.on_fetch = [&](net::PeerId from, const auto&...) { asked.push_back(from); };
  TransportPort port(transport);
  const auto sink = std::make_shared<Sink>();
  port.fetch(3, {"a", 1}, {}, sink, 100);
  port.close();
  port.fetch(4, {"b", 1}, {}, sink, 100);
  EXPECT_THAT(asked, ElementsAre(3));
  EXPECT_THAT(sink->ends, ElementsAre(net::FetchEnd::peer_failed));
}

TEST(TransportPort, ClosesAfterACallThatThrew) {
  test::FakeTransport transport;
  transport.on_fetch = [](const auto&...) { throw std::runtime_error("it failed"); };
  TransportPort port(transport);
  EXPECT_THROW(port.fetch(3, {"a", 1}, {}, std::make_shared<Sink>(), 100), std::runtime_error);
  port.close();
}

TEST(TransportPort, CloseWaitsForTheLastCall) {
  test::FakeTransport transport;
  std::promise<void> inside, go_on;
  std::mutex mutex;
  std::vector<std::string> seen;
  const auto see = [&](const char* what) {
    const std::lock_guard lock(mutex);
    seen.emplace_back(what);
  };
  transport.on_fetch = [&](const auto&...) {
    inside.set_value();
    go_on.get_future().wait();
    see("left");
  };
  TransportPort port(transport);
  std::thread visitor([&] { port.fetch(1, {"a", 1}, {}, std::make_shared<Sink>(), 100); });
  inside.get_future().wait();
  std::thread closer([&] {
    port.close();
    see("closed");
  });
  go_on.set_value();
  visitor.join();
  closer.join();
  EXPECT_THAT(seen, ElementsAre("left", "closed"));
}

TEST(TransportPort, AllowsNestedCalls) {
  test::FakeTransport transport;
  int depth = 0;
  TransportPort port(transport);
  transport.on_fetch = [&](const auto&...) {
    if (++depth < 3) port.fetch(1, {"a", 1}, {}, std::make_shared<Sink>(), 100);
  };
  port.fetch(1, {"a", 1}, {}, std::make_shared<Sink>(), 100);
  EXPECT_EQ(depth, 3);
  port.close();
}

}  // namespace
}  // namespace ckpt::agent
