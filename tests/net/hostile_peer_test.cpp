// Peers that were let in, but do not speak our protocol, or only as much of it as does harm.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>

#include "listener_support.hpp"
#include "net/link_backend.hpp"
#include "net/listener.hpp"

namespace ckpt::net::testing {
namespace {

wire::Hello hello_of(PeerId from, std::uint64_t from_instance, PeerId to, std::uint64_t to_instance) {
  wire::Hello hello;
  hello.job_hash = wire::job_hash("test job");
  hello.from_node = from;
  hello.from_instance = from_instance;
  hello.to_node = to;
  hello.to_instance = to_instance;
  return hello;
}

// `right` with each of its fields spoilt in turn.
std::vector<wire::Hello> spoilt(const wire::Hello& right) {
  std::vector<wire::Hello> result(7, right);
  result[0].magic ^= 1;
  result[1].version ^= 1;
  result[2].job_hash ^= 1;
  result[3].to_node ^= 1;
  result[4].to_instance ^= 1;
  result[5].from_node ^= 1;
  result[6].from_instance ^= 1;
  return result;
}

// One connection to a victim, driven by hand.
class HostilePeer : private BackendEvents {
 public:
  HostilePeer(const Transport& victim, const std::string& transports)
      : options_(loopback_options(9, 900, transports)),
        listener_(std::make_unique<Connection>(victim.address())),
        asking_(dial(*listener_, member(9, 900), 1, 100)),
        backend_(make_backend(options_, *this)),
        link_(backend_->outgoing()) {
    if (!link_->open(asking_.place(), listener_->take())) throw std::runtime_error("cannot connect");
  }
  ~HostilePeer() { end(*backend_, link_); }
  static void end(LinkBackend& backend, const std::shared_ptr<Link>& link) {
    link->retire();
    link->close();
    for (int i = 0; i < 1000 && !link->idle(); ++i) backend.progress();
    link->end_operations();
  }

  // Returns when it was answered or the connection was closed.
  void say_hello(wire::Hello hello = hello_of(9, 900, 1, 100)) {
    prove(session(), Side::asker, hello);
    say_as_it_is(hello);
  }
  void say_as_it_is(const wire::Hello& hello) {
    link_->send(wire::kind_hello, hello);
    progress_until([this] { return received_[wire::kind_hello] > 0; });
    if (received_[wire::kind_hello] > 0) link_->prove(session());
  }
  void ask_for(const std::string& shard) {
    auto name = std::make_shared<const std::string>(shard);
    wire::FetchRequest request;
    request.request = 1;
    request.checkpoint = 1;
    request.shard_bytes = static_cast<std::uint32_t>(name->size());
    link_->send(wire::kind_fetch_request, request, std::as_bytes(std::span(*name)), name);
    progress_until([this] { return received_[wire::kind_fetch_answer] > 0; });
  }
  template <class Done>
  void progress_until(Done done) {
    const auto deadline = std::chrono::steady_clock::now() + wait_limit;
    while (!done() && !link_->failed() && std::chrono::steady_clock::now() < deadline) backend_->progress();
  }
  Link& link() { return *link_; }
  const Session& session() const { return *asking_.session(); }
  int received(wire::Kind kind) const { return received_[kind]; }

 private:
  void arrived(wire::Kind kind, const std::shared_ptr<Link>&, Arrival&) override { ++received_[kind]; }
  bool has_room() override { return false; }
  void joined(const std::shared_ptr<Link>&) override {}

  int received_[wire::kind_end] = {};
  const TransportOptions options_;
  const std::unique_ptr<Connection> listener_;
  const Asking asking_;
  const std::unique_ptr<LinkBackend> backend_;
  const std::shared_ptr<Link> link_;
};

// Answers every hello with the same one.
class HostileHost : private BackendEvents {
 public:
  HostileHost(const wire::Hello& answer, const std::string& transports)
      : answer_(answer), options_(loopback_options(9, 900, transports)), backend_(make_backend(options_, *this)) {
    ListenerOptions options;
    options.listen_on = local_address("lo");
    options.proven = [this](const std::string& from) { backend_->admit(from); };
    Listener::OnMember take;
    if (backend_->wants_connections())
      take = [this](UniqueFd connection) { comers_.put(std::make_shared<UniqueFd>(std::move(connection))); };
    listener_ =
        std::make_unique<Listener>(member(9, 900), options, backend_->place(), pending_connections_, take, nullptr);
  }
  ~HostileHost() {
    listener_.reset();
    if (link_ != nullptr) HostilePeer::end(*backend_, link_);
  }
  const std::string& address() const { return listener_->address(); }
  template <class Done>
  void progress_until(Done done) {
    const auto deadline = std::chrono::steady_clock::now() + wait_limit;
    while (!done() && std::chrono::steady_clock::now() < deadline) {
      for (; taken_in_ < comers_.count(); ++taken_in_)
        backend_->take_in(std::move(*comers_.wait_for(taken_in_ + 1)[taken_in_]));
      backend_->progress();
    }
  }
  int asked_for() const { return asked_for_; }
  // What every request is answered with, one after the other.
  void will_answer(std::vector<wire::FetchAnswer> answers) { fetch_answers_ = std::move(answers); }
  bool spoils_proof = false;

 private:
  void arrived(wire::Kind kind, const std::shared_ptr<Link>& link, Arrival& arrival) override {
    if (kind == wire::kind_hello) answer_hello(*wire::decode<wire::Hello>(arrival.header));
    if (kind != wire::kind_fetch_request || !link->unseal(arrival)) return;
    ++asked_for_;
    const auto request = wire::decode<wire::FetchRequest>(arrival.header);
    for (wire::FetchAnswer answer : fetch_answers_) {
      answer.request = request->request;
      link_->send(wire::kind_fetch_answer, answer, std::span(manifest_).first(answer.manifest_bytes));
    }
  }
  bool has_room() override { return true; }
  void joined(const std::shared_ptr<Link>& link) override { link_ = link; }
  void answer_hello(const wire::Hello& hello) {
    const auto session = pending_connections_.arrived(hello);
    ASSERT_TRUE(session);
    wire::Hello answer = answer_;
    prove(*session, Side::answerer, answer);
    if (spoils_proof) answer.proof[0] ^= std::byte{1};
    link_->send(wire::kind_hello, answer);
    link_->prove(*session);
  }

  const wire::Hello answer_;
  const std::vector<std::byte> manifest_ = std::vector<std::byte>(100);
  std::vector<wire::FetchAnswer> fetch_answers_;
  int asked_for_ = 0;
  PendingConnections pending_connections_;
  Mailbox<std::shared_ptr<UniqueFd>> comers_;
  std::size_t taken_in_ = 0;
  const TransportOptions options_;
  const std::unique_ptr<LinkBackend> backend_;
  std::unique_ptr<Listener> listener_;
  std::shared_ptr<Link> link_;
};

class OverEachTransport : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, OverEachTransport, ::testing::ValuesIn(each_transport),
                         [](const auto& tested) { return name_of(tested.param); });

void expect_alive(Node& node, const std::string& transports) {
  Node friendly(loopback_options(2, 200, transports));
  node.knows(friendly);
  friendly.knows(node);
  node.serves({"alive", 1}, pattern(3'000'000, 5), "");
  EXPECT_EQ(friendly.fetch(1, {"alive", 1})->end(), FetchEnd::complete);
}

TEST_P(OverEachTransport, IgnoresEverythingBeforeTheHello) {
  Node node(loopback_options(1, 100, GetParam()));
  HostilePeer hostile(*node.transport, GetParam());
  const auto words = bytes_of("let me in");
  bool sent = false;
  hostile.link().send_bytes(wire::kind_message, {}, words, nullptr, [&](bool) { sent = true; });
  hostile.progress_until([&] { return sent; });
  hostile.say_hello();
  const auto manners = bytes_of("please");
  hostile.link().send_bytes(wire::kind_message, {}, manners, nullptr, nullptr);
  hostile.progress_until([&] { return node.messages.count() > 0; });
  const auto received = node.messages.wait_for(1);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(text_of(received[0].second), "please");
}

TEST_P(OverEachTransport, RefusesAHelloWithAnyWrongField) {
  Node node(loopback_options(1, 100, GetParam()));
  node.transport->set_peer(9, 900, "127.0.0.1:1");
  const auto right = hello_of(9, 900, 1, 100);
  for (const auto& hello : spoilt(right)) {
    HostilePeer hostile(*node.transport, GetParam());
    hostile.say_hello(hello);
    EXPECT_EQ(hostile.received(wire::kind_hello), 0);
    EXPECT_TRUE(hostile.link().failed());
  }
  HostilePeer polite(*node.transport, GetParam());
  polite.say_hello(right);
  EXPECT_EQ(polite.received(wire::kind_hello), 1);
}

TEST_P(OverEachTransport, RefusesAnAnswerWithAnyWrongField) {
  const auto right = hello_of(9, 900, 1, 100);
  for (const auto& answer : spoilt(right)) {
    HostileHost host(answer, GetParam());
    Node node(loopback_options(1, 100, GetParam()));
    node.transport->set_peer(9, 900, host.address());
    const auto sink = node.fetch(9, {"piece", 1});
    host.progress_until([&] { return sink->ends.count() > 0; });
    EXPECT_EQ(sink->end(), FetchEnd::peer_failed);
    EXPECT_EQ(host.asked_for(), 0);
  }
  for (const bool spoils_proof : {true, false}) {
    HostileHost host(right, GetParam());
    host.spoils_proof = spoils_proof;
    Node node(loopback_options(1, 100, GetParam()));
    node.transport->set_peer(9, 900, host.address());
    const auto sink = node.fetch(9, {"piece", 1});
    host.progress_until([&] { return host.asked_for() > 0 || sink->ends.count() > 0; });
    EXPECT_EQ(host.asked_for(), spoils_proof ? 0 : 1);
  }
}

TEST_P(OverEachTransport, RefusesAHelloWithoutProof) {
  Node node(loopback_options(1, 100, GetParam()));
  HostilePeer visitor(*node.transport, GetParam());
  wire::Hello right = hello_of(9, 900, 1, 100);
  prove(visitor.session(), Side::asker, right);
  std::vector<wire::Hello> wrong(4, right);
  wrong[0] = hello_of(9, 900, 1, 100);
  wrong[1].session ^= 1;
  wrong[2].proof[31] ^= std::byte{1};
  prove(visitor.session(), Side::answerer, wrong[3]);
  for (const auto& hello : wrong) {
    HostilePeer hostile(*node.transport, GetParam());
    hostile.say_as_it_is(hello);
    EXPECT_EQ(hostile.received(wire::kind_hello), 0);
    EXPECT_TRUE(hostile.link().failed());
  }
  visitor.say_as_it_is(right);
  EXPECT_EQ(visitor.received(wire::kind_hello), 1);
}

TEST_P(OverEachTransport, RefusesARepeatedHello) {
  Node node(loopback_options(1, 100, GetParam()));
  wire::Hello recorded = hello_of(9, 900, 1, 100);
  {
    HostilePeer visitor(*node.transport, GetParam());
    prove(visitor.session(), Side::asker, recorded);
    visitor.say_as_it_is(recorded);
    ASSERT_EQ(visitor.received(wire::kind_hello), 1);
  }
  HostilePeer replay(*node.transport, GetParam());
  replay.say_as_it_is(recorded);
  EXPECT_EQ(replay.received(wire::kind_hello), 0);
  EXPECT_TRUE(replay.link().failed());
}

TEST_P(OverEachTransport, DropsMessagesWithoutAValidSeal) {
  Node node(loopback_options(1, 100, GetParam()));
  HostilePeer peer(*node.transport, GetParam());
  peer.say_hello();
  Session of_another = peer.session();
  of_another.key[0] ^= std::byte{1};
  const auto forged = bytes_of("forged"), own = bytes_of("own");
  peer.link().prove(of_another);
  peer.link().send_bytes(wire::kind_message, {}, forged, nullptr, nullptr);
  peer.link().prove(peer.session());
  peer.link().send_bytes(wire::kind_message, {}, own, nullptr, nullptr);
  peer.progress_until([&] { return node.messages.count() > 0; });
  const auto received = node.messages.wait_for(1);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(text_of(received[0].second), "own");
}

TEST_P(OverEachTransport, DropsAnAnswerLongerThanTheRequest) {
  HostileHost host(hello_of(9, 900, 1, 100), GetParam());
  Node node(loopback_options(1, 100, GetParam()));
  node.transport->set_peer(9, 900, host.address());
  constexpr auto chunk_bytes = wire::grain_bytes;
  const wire::FetchAnswer in_order{0, 0, chunk_bytes, 0, wire::Status::found};
  for (const wire::FetchAnswer& excess : {wire::FetchAnswer{0, 501, chunk_bytes, 0, wire::Status::found},
                                          wire::FetchAnswer{0, UINT64_MAX, chunk_bytes, 0, wire::Status::found},
                                          wire::FetchAnswer{0, 0, chunk_bytes, 100, wire::Status::found}}) {
    host.will_answer({excess, in_order});
    const auto sink = node.fetch(9, {"piece", 1}, FetchPart{1000, 500, false});
    host.progress_until([&] { return sink->ends.count() > 0; });
    EXPECT_EQ(sink->end(), FetchEnd::complete);
    EXPECT_TRUE(sink->in_order);
    EXPECT_TRUE(sink->data.empty());
    EXPECT_TRUE(sink->manifest.empty());
  }
}

TEST_P(OverEachTransport, DropsGarbageOfEveryKind) {
  Node node(loopback_options(1, 100, GetParam()));
  HostilePeer hostile(*node.transport, GetParam());
  hostile.say_hello();
  ASSERT_FALSE(hostile.link().failed());
  std::mt19937_64 random(7);
  std::size_t under_way = 0;
  for (int i = 0; i < 4000; ++i) {
    const auto kind = static_cast<wire::Kind>(2 + random() % 6);
    std::vector<std::byte> header(random() % 2 == 0 ? random() % 41 : std::size_t{8} << (random() % 3));
    for (auto& byte : header) byte = static_cast<std::byte>(random() % 4 == 0 ? random() : 0);
    auto payload = std::make_shared<std::vector<std::byte>>(random() % 8 == 0 ? random() % 200'000 : random() % 100);
    ++under_way;
    hostile.link().send_bytes(kind, header, *payload, payload, [&under_way](bool) { --under_way; });
    if (under_way > 50) hostile.progress_until([&] { return under_way <= 10; });
  }
  hostile.progress_until([&] { return under_way == 0; });
  EXPECT_FALSE(hostile.link().failed());
  EXPECT_GT(node.messages.count(), 0u);  // any bytes are a message
  expect_alive(node, GetParam());
}

TEST_P(OverEachTransport, FreesAPieceThatIsNotFetchedInTime) {
  auto options = loopback_options(1, 100, GetParam());
  options.progress_timeout_ms = 300;
  Mailbox<int> freed;
  const auto data = pattern(64u << 20, 1);
  Transport::Handlers handlers;
  handlers.serve = [&](const Asker&, const PieceName&) {
    return ServedPiece{{}, data, std::shared_ptr<void>(nullptr, [&](void*) { freed.put(1); })};
  };
  const auto transport = Transport::create(options, std::move(handlers));

  HostilePeer never_accepts(*transport, GetParam());
  never_accepts.say_hello();
  never_accepts.ask_for("piece");
  ASSERT_EQ(never_accepts.received(wire::kind_fetch_answer), 1);
  EXPECT_EQ(freed.wait_for(1).size(), 1u);

  HostilePeer never_receives(*transport, GetParam());
  never_receives.say_hello();
  never_receives.ask_for("piece");
  bool accepted = false;
  never_receives.link().send(wire::kind_accept, wire::Control{1}, {}, nullptr, [&](bool) { accepted = true; });
  never_receives.progress_until([&] { return accepted; });
  EXPECT_EQ(freed.wait_for(2).size(), 2u);
}

TEST(UcxListener, SurvivesNoise) {
  Node node(loopback_options(1, 100, "tcp,cma"));
  const auto address = parse_socket_address(ucx_address_behind(node.transport->address()));
  std::mt19937_64 random(3);
  for (int i = 0; i < 20; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(::connect(fd, address->get(), address->size_bytes), 0);
    std::vector<std::byte> noise(i == 0 ? 0 : random() % 5000);
    for (auto& byte : noise) byte = static_cast<std::byte>(random());
    [[maybe_unused]] const auto sent = ::send(fd, noise.data(), noise.size(), MSG_NOSIGNAL);
    ::close(fd);
  }
  expect_alive(node, "tcp,cma");
}

}  // namespace
}  // namespace ckpt::net::testing
