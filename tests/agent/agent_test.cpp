// Whole agents with real trainers: two to four nodes of one job in this process.
#include "agent/agent.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>

#include "arena/control.hpp"
#include "cluster.hpp"
#include "coord/node_registry.hpp"
#include "coord/open_store.hpp"
#include "core/message_codec.hpp"
#include "persist/checkpoint_catalog.hpp"
#include "persist/storage_source.hpp"

namespace ckpt::agent {
namespace {

using testing::AgentCluster;
using ::testing::AllOf;
using ::testing::Each;
using testing::eventually;
using ::testing::HasSubstr;
using testing::on_all;
using testing::Trainer;

using Trainers = std::vector<std::unique_ptr<Trainer>>;

Trainers start_trainers(AgentCluster& cluster, const std::vector<std::string>& nodes, std::size_t floats = 100'000) {
  Trainers trainers;
  for (std::uint32_t rank = 0; rank < nodes.size(); ++rank)
    trainers.push_back(std::make_unique<Trainer>(cluster, nodes[rank], rank, floats));
  return trainers;
}

void expect_restored(Trainers& trainers, std::int64_t iteration) {
  EXPECT_THAT(on_all(trainers, [](Trainer& trainer) { return trainer.restore(); }), Each(CKPT_OK));
  for (const auto& trainer : trainers) {
    EXPECT_EQ(trainer->restored().found, iteration >= 0) << trainer->error();
    EXPECT_EQ(trainer->restored().iteration, iteration);
    EXPECT_TRUE(iteration < 0 || trainer->holds(iteration));
  }
}

bool all_ok(const std::vector<ckpt_status>& answers) {
  return std::all_of(answers.begin(), answers.end(), [](ckpt_status status) { return status == CKPT_OK; });
}

// Snapshots until one is committed; which one depends on when grants come. What not every rank takes never is.
std::int64_t commit_one(Trainers& trainers, std::int64_t from) {
  const Deadline deadline = Deadline::in_ms(std::chrono::milliseconds(3 * testing::wait_limit).count());
  for (std::int64_t iteration = from; !deadline.passed(); ++iteration) {
    if (!all_ok(on_all(trainers, [&](Trainer& trainer) { return trainer.snapshot(iteration); }))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      continue;
    }
    if (all_ok(on_all(trainers, [&](Trainer& trainer) { return trainer.wait_commit(iteration); }))) return iteration;
  }
  throw std::runtime_error("nothing was committed");
}

TEST(Agent, AJobRestoresWhatItCommittedFromItsOwnNodes) {
  AgentCluster cluster(2);
  cluster.start("a");
  cluster.start("b");
  auto trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, -1);
  const auto committed = commit_one(trainers, 0);
  trainers.clear();
  trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, committed);
  for (const auto& trainer : trainers) {
    EXPECT_EQ(trainer->restored().main_tier, CKPT_TIER_LOCAL);
    EXPECT_EQ(trainer->restored().incarnation, 2u);
  }
}

TEST(Agent, RestoresALostNodeFromItsPeerRepeatedly) {
  AgentCluster cluster(2);
  cluster.start("a");
  cluster.start("b");
  auto trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, -1);
  std::int64_t committed = commit_one(trainers, 0);
  for (const std::string lost : {"b", "a", "b"}) {
    trainers.clear();
    cluster.destroy(lost);
    cluster.start(lost);
    trainers = start_trainers(cluster, {"a", "b"});
    expect_restored(trainers, committed);
    EXPECT_EQ(trainers[lost == "a" ? 0 : 1]->restored().main_tier, CKPT_TIER_PEER);
    EXPECT_EQ(trainers[lost == "a" ? 1 : 0]->restored().main_tier, CKPT_TIER_LOCAL);
    committed = commit_one(trainers, committed + 1);
  }
}

// Whether a node hears what does not come in a batch.
struct Ears {
  std::atomic<bool> reports = true;
  std::atomic<bool> directives = true;
};
AgentCluster::Change hearing(const Ears& ears) {
  return [&ears](AgentSetup& setup) {
    setup.make_transport = [&ears](const net::TransportOptions& options, net::Transport::Handlers handlers) {
      handlers.message = [&ears, receive = std::move(handlers.message)](net::PeerId from,
                                                                        std::span<const std::byte> bytes) {
        const auto message = core::decode(bytes);
        if (!message || (!ears.reports && std::holds_alternative<core::Report>(*message)) ||
            (!ears.directives && std::holds_alternative<core::Directive>(*message)))
          return;
        receive(from, bytes);
      };
      return net::Transport::create(options, std::move(handlers));
    };
  };
}

// Four are many here: two groups of two, and in one of them at least neither is the leader.
TEST(Agent, RelayedJobRestoresAfterLossOfMemberRelayOrLeader) {
  std::map<std::string, Ears> ears;  // outlive the agents
  AgentCluster cluster(4);
  const std::vector<std::string> nodes = {"a", "b", "c", "d"};
  const OptionPairs many = {{"relay_from", "4"}};
  for (const std::string& node : nodes) cluster.start(node, many, hearing(ears[node]));
  std::string member, relay, leader;  // one that has another node for a relay
  const auto find_member = [&] {
    return std::any_of(nodes.begin(), nodes.end(), [&](const std::string& node) {
      const auto status = cluster.status(node);
      if (!status.at("relay").is_string() || status.at("relay") == node) return false;
      member = node;
      relay = status.at("relay");
      leader = status.at("leader");
      return true;
    });
  };
  ASSERT_TRUE(eventually(find_member));
  auto trainers = start_trainers(cluster, nodes);
  expect_restored(trainers, -1);
  std::int64_t committed = commit_one(trainers, 0);
  for (const bool lose_relay : {true, false}) {
    ASSERT_TRUE(eventually(find_member));
    ears[leader].reports = ears[member].directives = false;
    committed = commit_one(trainers, committed + 1);
    ears[leader].reports = ears[member].directives = true;
    const std::string lost = lose_relay ? relay : member;
    trainers.clear();
    cluster.destroy(lost);
    cluster.start(lost, many, hearing(ears[lost]));
    trainers = start_trainers(cluster, nodes);
    expect_restored(trainers, committed);
    committed = commit_one(trainers, committed + 1);
  }
}

TEST(Agent, RanksRestoreOnOtherNodesThanBefore) {
  AgentCluster cluster(2);
  cluster.start("a");
  cluster.start("b");
  auto trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, -1);
  const auto committed = commit_one(trainers, 0);
  trainers.clear();
  trainers = start_trainers(cluster, {"b", "a"});
  expect_restored(trainers, committed);
  EXPECT_GT(commit_one(trainers, committed + 1), committed);
}

TEST(Agent, OneAgentServesSeveralRanks) {
  AgentCluster cluster(4);
  cluster.start("a");
  cluster.start("b");
  auto trainers = start_trainers(cluster, {"a", "a", "b", "b"});
  expect_restored(trainers, -1);
  const auto committed = commit_one(trainers, 0);
  trainers.clear();
  cluster.destroy("a");
  cluster.start("a");
  trainers = start_trainers(cluster, {"a", "a", "b", "b"});
  expect_restored(trainers, committed);
}

TEST(Agent, ARestartedAgentFindsItsArenaAndItsLivingTrainers) {
  AgentCluster cluster(2);
  cluster.start("a");
  cluster.start("b");
  auto trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, -1);
  std::int64_t committed = commit_one(trainers, 0);
  for (int round = 0; round < 3; ++round) {
    cluster.stop("a");
    cluster.start("a");
    committed = commit_one(trainers, committed + 1);
  }
  EXPECT_EQ(cluster.status("a").at("incarnation"), 1) << "an agent's restart is no new incarnation";
  trainers.clear();
  trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, committed);
}

TEST(Agent, RefusesTrainerWhoseControlPageIsGone) {
  AgentCluster cluster(1);
  cluster.start("a");
  auto trainers = start_trainers(cluster, {"a"});
  expect_restored(trainers, -1);
  std::int64_t iteration = commit_one(trainers, 0);
  cluster.stop("a");
  ASSERT_TRUE(std::filesystem::remove(cluster.node_dir("a") + "/rank-0.control"));
  cluster.start("a");
  EXPECT_TRUE(testing::eventually([&] { return trainers[0]->snapshot(++iteration) == CKPT_ERR_SUPERSEDED; }));
}

TEST(Agent, WritesHeartbeatsToEachTrainersHealthPage) {
  AgentCluster cluster(1);
  cluster.start("a");
  auto trainers = start_trainers(cluster, {"a"});
  expect_restored(trainers, -1);
  const arena::Control page = arena::Control::attach(cluster.node_dir("a"), 0);
  for (int i = 0; i < 3; ++i) {
    const std::uint64_t heartbeats = page.health().heartbeats();
    ASSERT_TRUE(testing::eventually([&] { return page.health().heartbeats() > heartbeats; }));
  }
}

TEST(Agent, NextRunUsesTheArenaOfADeadRun) {
  AgentCluster cluster(2);
  std::int64_t committed = 0;
  {
    cluster.start("a");
    cluster.start("b");
    auto trainers = start_trainers(cluster, {"a", "b"});
    expect_restored(trainers, -1);
    committed = commit_one(trainers, 0);
    trainers.clear();
    cluster.stop("a");
    cluster.stop("b");
  }
  std::ofstream(cluster.node_dir("a") + "/99.segment") << "cut off while it was made";
  cluster.start("a");
  cluster.start("b");
  auto trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, committed);
  EXPECT_FALSE(std::filesystem::exists(cluster.node_dir("a") + "/99.segment"));
}

TEST(Agent, StateThatGrowsBetweenIncarnationsGetsLargerSlots) {
  AgentCluster cluster(2);
  cluster.start("a");
  cluster.start("b");
  auto trainers = start_trainers(cluster, {"a", "b"}, 1000);
  expect_restored(trainers, -1);
  commit_one(trainers, 0);
  trainers.clear();
  // Another layout: what is stored does not fit it, and that is said before anything is overwritten.
  trainers = start_trainers(cluster, {"a", "b"}, 400'000);
  EXPECT_THAT(on_all(trainers, [](Trainer& trainer) { return trainer.restore(); }), Each(CKPT_ERR_MISMATCH));
  EXPECT_THAT(trainers[0]->error(), HasSubstr("weights"));
}

TEST(Agent, TwoAgentsDoNotShareAnArena) {
  AgentCluster cluster(1);
  cluster.start("a");
  try {
    Agent second(standard_setup(parse_options(Reader::agent, cluster.options("a"), nullptr), silent_log()));
    FAIL();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.status(), CKPT_ERR_CLAIMED);
    EXPECT_THAT(failure.what(), HasSubstr(cluster.node_dir("a")));
  }
  EXPECT_EQ(cluster.status("a").at("node"), "a") << "the first one is unharmed";
}

TEST(Agent, RefusesASecondMachineWithTheNodesName) {
  AgentCluster cluster(1);
  cluster.start("a");
  OptionPairs elsewhere = cluster.options("a");
  for (auto& [key, value] : elsewhere)
    if (key == "arena_dir") value = cluster.path() + "/other";
  const auto setup = [&] { return standard_setup(parse_options(Reader::agent, elsewhere, nullptr), silent_log()); };
  for (int i = 0; i < 3; ++i) EXPECT_THROW(Agent{setup()}, Failure);
  EXPECT_EQ(cluster.status("a").at("node"), "a") << "the first one is unharmed";
  cluster.stop("a");
  const Agent second(setup());
}

TEST(Agent, LaterOfTwoNodesWithTheSameNumberEndsAndSaysWhy) {
  AgentCluster cluster(2);
  cluster.start("a");
  const auto store = coord::open_store(cluster.path() + "/coordination", "test");
  coord::NodeEntry older = coord::node_entry(store->get(coord::node_key("a")).value()).value();
  older.name = "b";
  ++older.arena_id;
  --older.agent_id;
  coord::register_node(*store, older);
  ASSERT_TRUE(cluster.asked_to_stop("a"));
  EXPECT_THAT(cluster.agent("a").replaced(), HasSubstr("node b has the same number as this node"));
}

TEST(Agent, RefusesTrainerOfAnotherJob) {
  AgentCluster cluster(1);
  cluster.start("a");
  const auto answer = cluster.ask("a", {{"type", "hello"}, {"protocol", 3}, {"job", "other"}});
  EXPECT_EQ(answer.at("status"), CKPT_ERR_NO_AGENT);
  EXPECT_THAT(answer.at("message").get<std::string>(), HasSubstr("serves job test, not other"));
}

TEST(Agent, RefusesAnArenaBeyondItsBudgetAndNamesTheNumbers) {
  AgentCluster cluster(1);
  cluster.start("a", {{"arena_bytes", "1MiB"}, {"copies", "1"}});
  auto trainers = start_trainers(cluster, {"a"}, 1'000'000);
  expect_restored(trainers, -1);
  EXPECT_EQ(trainers[0]->snapshot(0), CKPT_ERR_NO_SPACE);
  EXPECT_THAT(trainers[0]->error(), HasSubstr("arena_bytes"));
  EXPECT_THAT(trainers[0]->error(), HasSubstr("MiB"));
}

TEST(Agent, NamesMissingRankWhenTheRestoreTimesOut) {
  AgentCluster cluster(2);
  cluster.start("a");
  Trainer alone(cluster, "a", 0, 1000, {{"restore_timeout_ms", "800"}});
  EXPECT_EQ(alone.restore(), CKPT_ERR_TIMEOUT);
  EXPECT_THAT(alone.error(), HasSubstr("ranks 1"));
}

TEST(Agent, RefusesDisagreeingWorldSizesAndNamesBoth) {
  AgentCluster cluster(2);
  cluster.start("a");
  Trainers trainers;
  for (const auto& [rank, world_size] : {std::pair(0u, "2"), std::pair(1u, "3")})
    trainers.push_back(std::make_unique<Trainer>(
        cluster, "a", rank, 1000, OptionPairs{{"world_size", world_size}, {"restore_timeout_ms", "8000"}}));
  const auto statuses = on_all(trainers, [](Trainer& trainer) { return trainer.restore(); });
  // The first to come is right, the other one learns of both.
  const std::size_t refused = statuses[0] == CKPT_ERR_MISMATCH ? 0 : 1;
  EXPECT_EQ(statuses[refused], CKPT_ERR_MISMATCH);
  EXPECT_THAT(trainers[refused]->error(), AllOf(HasSubstr("2"), HasSubstr("3"), HasSubstr("world_size")));
}

TEST(Agent, RefetchesPiecesThatArriveDamaged) {
  AgentCluster cluster(2);
  cluster.start("a");
  std::atomic<int> damaged = 0;
  cluster.start("b", {}, testing::wrapped([&](std::unique_ptr<net::Transport> inner) {
                  return test::tampering(std::move(inner), [&](net::PeerId, const net::PieceName& piece, auto chunk) {
                    if (piece.shard == "rank0" && damaged++ < 3) chunk[chunk.size() / 2] ^= std::byte{1};
                  });
                }));
  auto trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, -1);
  const auto committed = commit_one(trainers, 0);
  EXPECT_GE(damaged, 3);
  EXPECT_GE(cluster.status("b").at("counters").at("corrupt"), 1);
  trainers.clear();
  cluster.destroy("a");
  cluster.start("a");
  trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, committed);
}

// Damages the bytes of every whole piece of `shard` in a node's segment files.
int damage(AgentCluster& cluster, const std::string& node, const std::string& shard) {
  int count = 0;
  const auto status = cluster.status(node);
  for (const auto& segment : status.at("segments")) {
    if (segment.at("shard") != shard) continue;
    auto mapped = arena::Segment::attach(segment.at("file").get<std::string>(), arena::Segment::Access::write);
    for (std::uint32_t i = 0; i < mapped.spec().slots; ++i) {
      if (segment.at("slots")[i].at("state") != "whole") continue;
      mapped.writable_slot(i).data()[12345] ^= std::byte{4};
      ++count;
    }
  }
  return count;
}

TEST(Agent, ReplacesDamagedLocalPieceFromPeer) {
  AgentCluster cluster(2);
  cluster.start("a");
  cluster.start("b");
  auto trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, -1);
  const auto committed = commit_one(trainers, 0);
  trainers.clear();
  EXPECT_GE(damage(cluster, "a", "rank0"), 1);
  trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, committed);
  EXPECT_EQ(trainers[0]->restored().main_tier, CKPT_TIER_PEER);
  EXPECT_GE(cluster.status("a").at("counters").at("corrupt"), 1);
}

TEST(Agent, QuarantinesDamagedSourceAndUsesTheNext) {
  AgentCluster cluster(3);
  for (const char* node : {"a", "b", "c"}) cluster.start(node, {{"copies", "3"}});
  auto trainers = start_trainers(cluster, {"a", "b", "c"});
  expect_restored(trainers, -1);
  const auto committed = commit_one(trainers, 0);
  trainers.clear();
  EXPECT_GE(damage(cluster, "b", "rank0"), 1);
  cluster.destroy("a");
  cluster.start("a", {{"copies", "3"}});
  trainers = start_trainers(cluster, {"a", "b", "c"});
  expect_restored(trainers, committed);
  // Whether or not a's fetch began with b, b's copy is found damaged or replaced before it can be believed.
  commit_one(trainers, committed + 1);
}

TEST(Agent, GivesUpAPeerThatNeverAnswers) {
  std::atomic<bool> silent = false;  // outlives the agents that read it
  AgentCluster cluster(2);
  cluster.start("a");
  cluster.start("b", {}, testing::silenced_by(silent));
  auto trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, -1);
  const auto committed = commit_one(trainers, 0);
  trainers.clear();
  silent = true;
  trainers = start_trainers(cluster, {"a", "a"});
  expect_restored(trainers, committed);
}

// Grants, answers and fetches come behind messages: none of them is lost with a message that fails.
TEST(Agent, FailedSendLosesNoOtherEffect) {
  AgentCluster cluster(2);
  for (const char* node : {"a", "b"}) cluster.start(node, {}, testing::wrapped(test::failing));
  auto trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, -1);
  std::int64_t committed = -1;
  for (int i = 0; i < 10; ++i) committed = commit_one(trainers, committed + 1);
  trainers.clear();
  trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, committed);
}

TEST(Agent, WaitsForAStoreThatIsTemporarilyGone) {
  AgentCluster cluster(2);
  cluster.start("a");
  cluster.start("b");
  auto trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, -1);
  auto committed = commit_one(trainers, 0);
  const std::string store = cluster.path() + "/coordination";
  std::filesystem::rename(store, store + ".gone");
  std::ofstream(store) << "not a directory";
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // several polls fail
  std::filesystem::remove(store);
  std::filesystem::rename(store + ".gone", store);
  committed = commit_one(trainers, committed + 1);
  trainers.clear();
  trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, committed);
}

TEST(Agent, StatusReportsJobRanksAndCheckpoints) {
  AgentCluster cluster(2);
  cluster.start("a", {{"arena_bytes", "64MiB"}});
  cluster.start("b");
  auto trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, -1);
  const auto committed = commit_one(trainers, 0);
  EXPECT_TRUE(eventually([&] { return cluster.status("a").at("committed").at("iteration") == committed; }));
  const auto status = cluster.status("a");
  EXPECT_EQ(status.at("job"), "test");
  EXPECT_EQ(status.at("incarnation"), 1);
  EXPECT_EQ(status.at("decision").at("verdict"), "fresh");
  EXPECT_EQ(status.at("ranks").size(), 1u);
  EXPECT_EQ(status.at("ranks")[0].at("pid"), ::getpid());
  EXPECT_EQ(status.at("segments").size(), 4u) << "two local, two of the peer";
  EXPECT_EQ(status.at("arena").at("budget_bytes"), 64u << 20);
  EXPECT_GT(status.at("arena").at("bytes"), 0u);
  EXPECT_THAT(status.at("transport").get<std::string>(), HasSubstr("tcp"));
  EXPECT_EQ(status.at("nodes").size(), 2u);
  EXPECT_GE(status.at("counters").at("commits"), 1);
  EXPECT_GE(status.at("counters").at("fetches"), 2);
  EXPECT_GT(status.at("counters").at("bytes_received"), 0u);
  EXPECT_EQ(status.at("counters").at("bytes_coded"), 0u) << "no parity";
}

TEST(Agent, AnswersStopAndKeepsTheArena) {
  AgentCluster cluster(1);
  cluster.start("a");
  EXPECT_EQ(cluster.ask("a", {{"type", "stop"}}).at("status"), CKPT_OK);
  EXPECT_TRUE(cluster.asked_to_stop("a"));
  EXPECT_EQ(cluster.agent("a").replaced(), "");
  cluster.stop("a");
  EXPECT_TRUE(std::filesystem::exists(cluster.node_dir("a") + "/node"));
}

// Somebody who offers checkpoints: those in `directory`, or, where that is empty, nothing but a complaint.
AgentCluster::Change also_from(const std::string& directory) {
  return [directory](AgentSetup& setup) {
    setup.sources.emplace_back([directory](const std::stop_token&) -> std::unique_ptr<persist::CheckpointSource> {
      if (directory.empty()) throw Failure(CKPT_ERR_SYSTEM, "all who could have saved it are dead");
      return std::make_unique<persist::StorageSource>(persist::open_file_system(directory, {}), "test");
    });
  };
}

TEST(Agent, NewestCheckpointWinsThenMemoryThenStorage) {
  AgentCluster cluster(2);
  const std::string stored = cluster.path() + "/stored", saved = cluster.path() + "/saved";
  std::filesystem::create_directory(stored);
  const auto start = [&](const std::string& storage, const std::string& source) {
    for (const std::string node : {"a", "b"}) {
      cluster.stop(node);
      cluster.start(node, {{"storage", storage}, {"storage_every", "1"}, {"storage_keep_last", "100"}},
                    also_from(source));
    }
  };
  const auto steps_in = [&](const std::string& directory) {
    std::set<std::int64_t> found;
    for (const auto& step : persist::list_checkpoints(*persist::open_file_system(directory, {}), "test"))
      if (step.usable()) found.insert(step.iteration);
    return found;
  };
  const auto lose_all = [&] {
    for (const std::string node : {"a", "b"}) cluster.destroy(node);
  };

  start(stored, "");
  auto trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, -1);
  const auto first = commit_one(trainers, 1);
  ASSERT_TRUE(eventually([&] { return steps_in(stored).contains(first); }));
  std::filesystem::copy(stored, saved, std::filesystem::copy_options::recursive);
  std::filesystem::copy(stored, stored + ".first", std::filesystem::copy_options::recursive);
  const auto second = commit_one(trainers, first + 1);
  ASSERT_TRUE(eventually([&] { return steps_in(stored).contains(second); }));
  trainers.clear();

  // Storage knows the first, the other source the second, memory nothing.
  lose_all();
  start(stored + ".first", stored);
  trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, second);
  for (const auto& trainer : trainers) EXPECT_NE(trainer->restored().main_tier, CKPT_TIER_LOCAL);
  trainers.clear();

  // The other source fails: memory, which has the second again, wins over storage.
  start(stored + ".first", "");
  trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, second);
  for (const auto& trainer : trainers) EXPECT_EQ(trainer->restored().main_tier, CKPT_TIER_LOCAL);
  trainers.clear();

  lose_all();
  start(saved, "");
  trainers = start_trainers(cluster, {"a", "b"});
  expect_restored(trainers, first);
}

}  // namespace
}  // namespace ckpt::agent
