// Whole agents that restore one piece from the other, and one of them fails before it has any of the piece.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "cluster.hpp"

namespace ckpt::agent {
namespace {

using testing::AgentCluster;
using ::testing::Contains;
using ::testing::Each;
using testing::eventually;
using testing::on_all;
using testing::Trainer;

// Records of whom a node asks for pieces.
class Asked {
 public:
  void add(net::PeerId source) {
    const std::lock_guard lock(mutex_);
    sources_.push_back(source);
  }
  std::vector<net::PeerId> sources() {
    const std::lock_guard lock(mutex_);
    return sources_;
  }

 private:
  std::mutex mutex_;
  std::vector<net::PeerId> sources_;
};

// Three nodes that all keep everything. Only node a keeps its memory. Node b never gets anything, and node c is told to
// fetch from b.
class RestoreChainJobTest : public ::testing::Test {
 protected:
  RestoreChainJobTest() {
    for (const char* node : {"a", "b", "c"}) cluster_.start(node, {{"copies", "3"}});
    start_trainers();
    EXPECT_THAT(on_all(trainers_, [](Trainer& trainer) { return trainer.restore(); }), Each(CKPT_OK));
    const bool is_committed = eventually([&] {
      ++iteration_;
      const auto taken = on_all(trainers_, [&](Trainer& trainer) { return trainer.snapshot_in_time(iteration_); });
      return std::all_of(taken.begin(), taken.end(), [](ckpt_status status) { return status == CKPT_OK; }) &&
             trainers_[0]->wait_commit(iteration_) == CKPT_OK;
    });
    EXPECT_TRUE(is_committed);
    trainers_.clear();
    for (const char* node : {"b", "c"}) cluster_.destroy(node);
    cluster_.start("b", {{"copies", "3"}}, [this](AgentSetup& setup) { let_starve(setup); });
    cluster_.start("c", {{"copies", "3"}}, testing::wrapped([this](std::unique_ptr<net::Transport> inner) {
                     auto transport = std::make_unique<test::FakeTransport>(std::move(inner));
                     transport->on_fetch = [this, &real = transport->inner()](auto from, auto piece, auto part,
                                                                              auto sink, auto timeout_ms) {
                       asked_.add(from);
                       real.fetch(from, std::move(piece), part, std::move(sink), timeout_ms);
                     };
                     return transport;
                   }));
    EXPECT_TRUE(eventually([&] { return leads_all("a") || leads_all("b") || leads_all("c"); }));
    start_trainers();
  }
  ~RestoreChainJobTest() override {
    hangs_ = false;
    trainers_.clear();
  }

  // Nobody answers the node's fetches. While `hangs_`, it answers nobody, either.
  void let_starve(AgentSetup& setup) {
    setup.make_transport = [this](const net::TransportOptions& options, net::Transport::Handlers handlers) {
      handlers.serve = [this, serve = std::move(handlers.serve)](net::PeerId asker, const net::PieceName& piece) {
        while (hangs_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return serve(asker, piece);
      };
      auto transport = std::make_unique<test::FakeTransport>(net::Transport::create(options, std::move(handlers)));
      const auto held = std::make_shared<std::vector<std::shared_ptr<net::Sink>>>();
      transport->on_fetch = [held](auto, auto, auto, auto sink, auto) { held->push_back(std::move(sink)); };
      transport->on_end = [held] {
        for (const auto& sink : *held) sink->ended(net::FetchEnd::peer_failed);
      };
      return transport;
    };
  }
  void start_trainers() {
    std::uint32_t rank = 0;
    for (const char* node : {"a", "c", "c"}) trainers_.push_back(std::make_unique<Trainer>(cluster_, node, rank++));
  }
  bool leads_all(const std::string& node) {
    const auto status = cluster_.status(node);
    return status.at("is_leader").get<bool>() && status.at("nodes_present").size() == 3;
  }
  net::PeerId id(const std::string& node) { return cluster_.status(node).at("node_id").get<net::PeerId>(); }

  // Restores all ranks. `strike` runs when node c has waited for node b for longer than for a piece that nobody knows.
  template <class Strike>
  void expect_restored_after(const Strike& strike) {
    const net::PeerId kept = id("a"), starving = id("b");
    std::vector<ckpt_status> answers;
    std::thread restoring([&] { answers = on_all(trainers_, [](Trainer& trainer) { return trainer.restore(); }); });
    EXPECT_TRUE(eventually([&] { return !asked_.sources().empty(); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    EXPECT_THAT(asked_.sources(), Each(starving));
    strike();
    restoring.join();
    EXPECT_THAT(asked_.sources(), Contains(kept));
    EXPECT_THAT(answers, Each(CKPT_OK));
    for (const auto& trainer : trainers_) EXPECT_TRUE(trainer->holds(iteration_)) << trainer->error();
  }

  std::atomic<bool> hangs_ = false;
  Asked asked_;
  AgentCluster cluster_{3};
  std::vector<std::unique_ptr<Trainer>> trainers_;
  std::int64_t iteration_ = 0;
};

TEST_F(RestoreChainJobTest, ARestoreGoesOnFromAnotherNodeIfTheOneBeforeEndsWithoutHavingBegun) {
  expect_restored_after([&] { cluster_.stop("b"); });
}

TEST_F(RestoreChainJobTest, ARestoreGoesOnFromAnotherNodeIfTheOneBeforeStopsWithoutHavingBegun) {
  expect_restored_after([&] { hangs_ = true; });
}

}  // namespace
}  // namespace ckpt::agent
