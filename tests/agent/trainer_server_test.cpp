// The trainers' socket against well-behaved, wrong and hostile clients; the core is played by a stub.
#include "agent/trainers/trainer_server.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <random>

#include "base/error.hpp"
#include "support.hpp"

namespace ckpt::agent {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// Answers at once, or keeps the answer back.
class StubRequests : public TrainerRequests {
 public:
  void hello(const core::TrainerHello& hello, std::int64_t, Respond respond) override {
    hellos.put(hello);
    respond({});
  }
  void exited(Asker asker, bool) override { exits.put(asker); }
  void restore(Asker, const RestoreRequest& request, Respond respond) override {
    restores.put({request.timeout_ms, respond});
  }
  void restored(Asker, std::string, Respond respond) override { respond({}); }
  void corrupt(Asker, const CorruptRequest&, std::int64_t, Respond respond) override { respond({}); }
  void reserve(Asker, const ReserveRequest& request, Respond respond) override {
    reserves.put(request);
    respond({CKPT_ERR_NO_SPACE, "too little", json::object(), {}});
  }
  void trouble(Asker asker, std::string text, Respond respond) override {
    troubles.put({asker.rank, std::move(text)});
    respond({});
  }
  void status(Respond respond) override { respond({CKPT_OK, "", {{"agent", 1}}, {}}); }
  void health(Respond respond) override {
    if (on_health) on_health();
    respond({CKPT_OK, "", {{"health", 1}}, {}});
  }
  void trace(Respond respond) override { respond({CKPT_OK, "", {{"trace", 1}}, {}}); }
  void stop(Respond respond) override { respond({}); }

  std::function<void()> on_health;  // set before anybody asks
  testing::Mailbox<core::TrainerHello> hellos;
  testing::Mailbox<Asker> exits;
  testing::Mailbox<std::pair<std::int64_t, Respond>> restores;
  testing::Mailbox<ReserveRequest> reserves;
  testing::Mailbox<std::pair<core::Rank, std::string>> troubles;
};

class TrainerServerTest : public ::testing::Test {
 protected:
  TrainerServerTest() {
    std::filesystem::create_directories(options_.node_dir());
    server_.emplace(options_, requests_, silent_log());
  }
  FrameSocket connect() { return FrameSocket::connect(options_.node_dir() + "/agent.sock"); }
  static json ask(FrameSocket& socket, const json& request) {
    socket.send(request, {}, Deadline::in_ms(30'000));
    return socket.receive(Deadline::in_ms(30'000)).body;
  }
  json hello(std::uint64_t instance = 7) const {
    return {{"type", "hello"},
            {"protocol", 3},
            {"job", "job"},
            {"rank", 3},
            {"world_size", 4},
            {"shard", "rank3"},
            {"instance", instance},
            {"private_shard", "rank3.private"},
            {"pid", 1},
            {"incarnation", 0},
            {"options", {{"claim_timeout_ms", 100}}}};
  }
  // Uses a new connection, like an engine that has lost its own.
  void say_goodbye(std::uint64_t instance) {
    auto socket = connect();
    EXPECT_EQ(ask(socket, {{"type", "bye"}, {"rank", 3}, {"instance", instance}}).at("status"), CKPT_OK);
  }
  // What another process is answered to its last request.
  std::pair<int, std::string> of_another_process(const std::vector<json>& asked) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    const UniqueFd read(ends[0]);
    UniqueFd write(ends[1]);
    const pid_t child = ::fork();
    if (child == 0) {
      json answer;
      for (const json& request : asked) {
        auto socket = connect();
        answer = ask(socket, request);
      }
      const std::string text = answer.dump();
      ::_exit(::write(write.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
    }
    write.reset();
    char text[4096];
    const ssize_t got = ::read(read.get(), text, sizeof(text));
    ::waitpid(child, nullptr, 0);
    const json answer = json::parse(text, text + std::max<ssize_t>(got, 0));
    return {answer.at("status").get<int>(), answer.value("message", "")};
  }
  void expect_alive() {
    auto socket = connect();
    EXPECT_EQ(ask(socket, {{"type", "status"}}).at("agent"), 1);
  }

  test::TemporaryDirectory directory_{test::in_memory};
  const Options options_ =
      parse_options(Reader::agent, {{"job", "job"}, {"node", "a"}, {"arena_dir", directory_.path()}}, nullptr);
  StubRequests requests_;
  std::optional<TrainerServer> server_;
};

TEST_F(TrainerServerTest, AdmitsAndServesATrainer) {
  auto socket = connect();
  EXPECT_EQ(ask(socket, hello()).at("status"), CKPT_OK);
  const auto introduced = requests_.hellos.take();
  EXPECT_EQ(introduced.rank, 3u);
  EXPECT_EQ(introduced.instance, 7u);
  EXPECT_EQ(introduced.private_shard, "rank3.private");
  const json main = {{"shard", "rank3"}, {"bytes", 1u << 30}, {"layout_bytes", 100}};
  const json private_ = {{"shard", "rank3.private"}, {"bytes", 0}, {"layout_bytes", 2}};
  const auto answer = ask(socket, {{"type", "reserve"}, {"slots", {main, private_}}, {"shortage", "of memory"}});
  EXPECT_EQ(answer.at("status"), CKPT_ERR_NO_SPACE);
  EXPECT_EQ(answer.at("message"), "too little");
  const auto request = requests_.reserves.take();
  ASSERT_EQ(request.slots.size(), 2u);
  EXPECT_EQ(request.slots[0].shard, "rank3");
  EXPECT_EQ(request.slots[0].bytes, 1u << 30);
  EXPECT_EQ(request.shortage, "of memory");
}

TEST_F(TrainerServerTest, ServesOtherTrainersWhileAnAnswerIsPending) {
  auto socket = connect();
  ask(socket, hello());
  socket.send({{"type", "restore"}, {"timeout_ms", 1234}}, {}, Deadline::in_ms(30'000));
  const auto [timeout_ms, answer] = requests_.restores.take();
  EXPECT_EQ(timeout_ms, 1234);
  expect_alive();
  std::thread([&respond = answer] { respond({CKPT_OK, "late", {{"found", false}}, {}}); }).join();
  EXPECT_EQ(socket.receive(Deadline::in_ms(30'000)).body.at("message"), "late");
}

TEST_F(TrainerServerTest, DropsAnAnswerToADisconnectedTrainer) {
  Respond respond;
  {
    auto socket = connect();
    ask(socket, hello());
    socket.send({{"type", "restore"}, {"timeout_ms", 1}}, {}, Deadline::in_ms(30'000));
    respond = requests_.restores.take().second;
  }
  say_goodbye(7);
  EXPECT_EQ(requests_.exits.take().instance, 7u);
  respond({});
  expect_alive();
  server_.reset();
  respond({});  // later than the server itself
}

TEST_F(TrainerServerTest, TrainerThatHangsUpBeforeItsAnswerIsDisconnected) {
  {
    auto socket = connect();
    ask(socket, hello(7));
    socket.send({{"type", "restore"}, {"timeout_ms", 1}}, {}, Deadline::in_ms(30'000));
    requests_.restores.take();
  }
  auto next = connect();
  json claim = hello(8);
  claim["open_engines"] = {8};
  claim["options"]["claim_timeout_ms"] = 20'000;
  EXPECT_EQ(ask(next, claim).at("status"), CKPT_OK);
  EXPECT_EQ(requests_.exits.take().instance, 7u);
}

TEST_F(TrainerServerTest, EngineIsGoneAfterItsGoodbye) {
  auto socket = connect();
  ask(socket, hello(7));
  EXPECT_EQ(ask(socket, {{"type", "bye"}}).at("status"), CKPT_OK);
  EXPECT_EQ(requests_.exits.take().instance, 7u);
  {
    auto lost = connect();
    ask(lost, hello(8));
  }
  say_goodbye(8);
  EXPECT_EQ(requests_.exits.take().instance, 8u);
}

TEST_F(TrainerServerTest, ReadsAGoodbyeBeforeAnImmediateHangUp) {
  testing::Mailbox<bool> busy, go_on;
  requests_.on_health = [&] {
    busy.put(true);
    go_on.take();
  };
  auto engine = std::make_optional(connect());
  ask(*engine, hello(7));
  auto other = connect();
  other.send({{"type", "health"}}, {}, Deadline::in_ms(30'000));
  busy.take();
  engine->send({{"type", "bye"}}, {}, Deadline::in_ms(30'000));
  engine.reset();
  go_on.put(true);
  EXPECT_EQ(requests_.exits.take().instance, 7u);
}

// Its slots are its own until then: it may write into them at any moment.
TEST_F(TrainerServerTest, TrainerKeepsItsRankWithoutConnectionWhileItsProcessLives) {
  {
    auto socket = connect();
    ask(socket, hello(7));
  }
  json claim = hello(8);
  claim["options"]["claim_timeout_ms"] = 3000;  // time enough to give up the other one, if time were a proof
  const json forged = {{"type", "bye"}, {"rank", 3}, {"instance", 7}};
  const auto [status, message] = of_another_process({forged, claim});
  EXPECT_EQ(status, CKPT_ERR_CLAIMED) << message;
  EXPECT_THAT(message, HasSubstr("the living process " + std::to_string(::getpid())));
  EXPECT_TRUE(requests_.exits.empty());
  auto back = connect();
  json again = hello(7);
  again["incarnation"] = 2;
  EXPECT_EQ(ask(back, again).at("status"), CKPT_OK);
}

TEST_F(TrainerServerTest, DisconnectedEngineGivesWayToAnotherOfItsProcessOnlyOnceClosed) {
  {
    auto socket = connect();
    ask(socket, hello(7));
  }
  auto next = connect();
  json claim = hello(8);
  claim["open_engines"] = {7, 8};
  EXPECT_EQ(ask(next, claim).at("status"), CKPT_ERR_CLAIMED);
  EXPECT_TRUE(requests_.exits.empty());
  claim["open_engines"] = {8};
  EXPECT_EQ(ask(next, claim).at("status"), CKPT_OK);
  EXPECT_EQ(requests_.exits.take().instance, 7u);
}

TEST_F(TrainerServerTest, RefusesASecondTrainerOfALivingRank) {
  auto first = connect(), second = connect();
  ask(first, hello(7));
  const auto answer = ask(second, hello(8));
  EXPECT_EQ(answer.at("status"), CKPT_ERR_CLAIMED);
  EXPECT_THAT(answer.at("message").get<std::string>(), HasSubstr("another engine of this process"));
  EXPECT_TRUE(requests_.exits.empty());
}

TEST_F(TrainerServerTest, MakesARemovedSocketAgainAndKeepsConnections) {
  auto socket = connect();
  ask(socket, hello(7));
  std::filesystem::remove_all(options_.node_dir());
  std::filesystem::create_directories(options_.node_dir());
  server_->listen_again();
  EXPECT_TRUE(testing::eventually([&] { return std::filesystem::exists(options_.node_dir() + "/agent.sock"); }));
  expect_alive();
  EXPECT_EQ(ask(socket, {{"type", "status"}}).at("agent"), 1);
}

TEST_F(TrainerServerTest, OnlyTheSameEngineMayContinueItsIncarnation) {
  auto unknown = connect();
  json again = hello(9);
  again["incarnation"] = 2;
  EXPECT_EQ(ask(unknown, again).at("status"), CKPT_ERR_SUPERSEDED);
  auto socket = connect();
  ask(socket, hello(7));
  auto back = connect();
  again["instance"] = 7;
  EXPECT_EQ(ask(back, again).at("status"), CKPT_OK);
}

TEST_F(TrainerServerTest, AnswersWrongRequestsWithAMessage) {
  std::vector<std::pair<json, std::string>> wrong = {
      {{{"type", "restore"}, {"timeout_ms", 1}}, "instead of \"hello\""},
      {{{"type", 5}}, "type"},
      {json::object(), "type"},
      {{{"type", "hello"}}, "protocol"},
  };
  for (const auto& [key, value, named] :
       std::vector<std::tuple<const char*, json, const char*>>{{"protocol", 1, "versions"},
                                                               {"job", "other", "serves job job"},
                                                               {"rank", 4, "world size"},
                                                               {"rank", -1, "rank"},
                                                               {"rank", "3", "rank"},
                                                               {"world_size", 1e300, "world_size"},
                                                               {"shard", "../x", "shard"},
                                                               {"private_shard", "rank3", "have the same name"},
                                                               {"incarnation", std::uint64_t{1} << 60, "incarnation"},
                                                               {"instance", nullptr, "instance"}}) {
    json request = hello();
    request[key] = value;
    wrong.emplace_back(request, named);
  }
  for (const auto& [request, named] : wrong) {
    auto socket = connect();
    const auto answer = ask(socket, request);
    EXPECT_NE(answer.at("status"), CKPT_OK) << request;
    EXPECT_THAT(answer.at("message").get<std::string>(), HasSubstr(named));
  }
  EXPECT_TRUE(requests_.hellos.empty());
  expect_alive();
}

TEST_F(TrainerServerTest, MutatedRequestsNeverEndIt) {
  std::mt19937_64 random(4);
  const std::vector<json> requests = {
      hello(),
      {{"type", "reserve"}, {"slots", {{{"shard", "rank3"}, {"bytes", 1}, {"layout_bytes", 1}}}}, {"shortage", "x"}},
      {{"type", "corrupt"}, {"shard", "rank3"}, {"checkpoint", 1}, {"leaf", 0}},
      {{"type", "restored"}}};
  const std::vector<json> values = {nullptr,        -1,  UINT64_MAX, 1.5, "", std::string(1000, 'x'), json::array(),
                                    json::object(), true};
  for (int round = 0; round < 300; ++round) {
    auto socket = connect();
    for (json request : requests) {
      auto at = request.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(random() % request.size()));
      *at = values[random() % values.size()];
      if (request.value("type", json()) == json("status")) continue;
      EXPECT_TRUE(ask(socket, request).contains("status"));
    }
  }
  expect_alive();
}

TEST_F(TrainerServerTest, BytesThatAreNoFrameEndOnlyTheirConnection) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 100; ++round) {
    auto socket = connect();
    std::vector<std::byte> bytes(1 + random() % 100);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (round % 2 == 0 && bytes.size() > 4) bytes[1] = bytes[2] = bytes[3] = std::byte{0};  // a short frame
    [[maybe_unused]] const auto sent = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  expect_alive();
}

TEST_F(TrainerServerTest, ServesTrainersBesideManySilentConnections) {
  std::vector<FrameSocket> idle;
  for (int i = 0; i < 200; ++i) idle.push_back(connect());
  expect_alive();
}

}  // namespace
}  // namespace ckpt::agent
