// Whole agents that restore a piece one from the other, while one of them fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster.hpp"

namespace ckpt::agent {
namespace {

using testing::AgentCluster;
using ::testing::Contains;
using ::testing::Each;
using testing::eventually;
using ::testing::Not;
using testing::on_all;
using testing::Trainer;

// Records what a node asks other nodes for.
class Asked {
 public:
  void add(net::PeerId source, const std::string& shard) {
    const std::lock_guard lock(mutex_);
    sources_.push_back(source);
    shards_.push_back(shard);
  }
  std::vector<net::PeerId> sources() {
    const std::lock_guard lock(mutex_);
    return sources_;
  }
  bool asked_twice() {
    const std::lock_guard lock(mutex_);
    std::sort(shards_.begin(), shards_.end());
    return std::adjacent_find(shards_.begin(), shards_.end()) != shards_.end();
  }

 private:
  std::mutex mutex_;
  std::vector<net::PeerId> sources_;
  std::vector<std::string> shards_;
};

// Notes which addresses of other nodes a node knows.
class Acquainted : public test::FakeTransport {
 public:
  using FakeTransport::FakeTransport;
  void set_peer(net::PeerId peer, std::uint64_t instance, const std::string& address) override {
    FakeTransport::set_peer(peer, instance, address);
    const std::lock_guard lock(mutex_);
    known_.insert(address);
  }
  bool knows(const net::Transport& other) {
    const std::lock_guard lock(mutex_);
    return known_.contains(other.address());
  }

 private:
  std::mutex mutex_;
  std::set<std::string> known_;
};

// Keeps what one node asks another node for, until that node has been told to fetch it, too.
class Turnstile {
 public:
  void pass(const std::string& shard, std::function<void()> ask) {
    {
      const std::lock_guard lock(mutex_);
      if (!ordered_.contains(shard)) return waiting_[shard].push_back(std::move(ask));
    }
    ask();
  }
  void ordered(const std::string& shard) {
    std::vector<std::function<void()>> asks;
    {
      const std::lock_guard lock(mutex_);
      ordered_.insert(shard);
      asks = std::exchange(waiting_[shard], {});
    }
    for (const auto& ask : asks) ask();
  }

 private:
  std::mutex mutex_;
  std::set<std::string> ordered_;
  std::map<std::string, std::vector<std::function<void()>>> waiting_;
};

// Loses what comes behind the first `kept_bytes`.
class CutOff : public net::Sink {
 public:
  CutOff(std::shared_ptr<net::Sink> inner, std::size_t kept_bytes)
      : inner_(std::move(inner)), kept_bytes_(kept_bytes) {}
  std::optional<std::span<std::byte>> begin(std::span<const std::byte> manifest, std::size_t data_bytes) override {
    return inner_->begin(manifest, data_bytes);
  }
  void received(std::size_t offset_bytes, std::size_t size_bytes) override {
    if (offset_bytes + size_bytes <= kept_bytes_) inner_->received(offset_bytes, size_bytes);
  }
  void ended(net::FetchEnd) override { inner_->ended(net::FetchEnd::peer_failed); }

 private:
  const std::shared_ptr<net::Sink> inner_;
  const std::size_t kept_bytes_;
};

// Three nodes with a rank each, all of which hold all shards. Only node a keeps its memory. Node b gets nothing, or at
// first a part of a piece only. Node c is told to fetch from b.
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
                     auto transport = std::make_unique<Acquainted>(std::move(inner));
                     c_ = transport.get();
                     transport->on_fetch = [this, &real = transport->inner()](auto from, auto piece, auto part,
                                                                              auto sink, auto timeout_ms) {
                       asked_.add(from, piece.shard);
                       turnstile_.pass(piece.shard, [&real, from, piece, part, sink, timeout_ms] {
                         real.fetch(from, piece, part, sink, timeout_ms);
                       });
                     };
                     return transport;
                   }));
    EXPECT_TRUE(eventually([&] { return leads_all("a") || leads_all("b") || leads_all("c"); }));
    EXPECT_TRUE(eventually([&] { return b_->knows(*c_) && c_->knows(*b_); })) << "otherwise b refuses c";
    start_trainers("10000");
  }
  ~RestoreChainJobTest() override {
    hangs_ = false;
    trainers_.clear();
  }

  // Nobody answers the node's fetches, or with `gets_parts_`, they break off once. While `hangs_`, it answers nobody.
  void let_starve(AgentSetup& setup) {
    setup.make_transport = [this](const net::TransportOptions& options, net::Transport::Handlers handlers) {
      handlers.serve = [this, serve = std::move(handlers.serve)](const net::Asker& asker, const net::PieceName& piece) {
        while (hangs_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        auto served = serve(asker, piece);
        if (served && served->is_coming && piece.shard == "rank2") ++said_coming_;
        return served;
      };
      auto transport = std::make_unique<Acquainted>(net::Transport::create(options, std::move(handlers)));
      b_ = transport.get();
      const auto held = std::make_shared<std::vector<std::shared_ptr<net::Sink>>>();
      transport->on_fetch = [this, held, &real = transport->inner()](auto from, auto piece, auto part, auto sink,
                                                                     auto timeout_ms) {
        if (part.first_byte == 0 && piece.shard == "rank2") sink = std::make_shared<CutOff>(std::move(sink), 3u << 20);
        if (gets_parts_)
          real.fetch(from, piece, part, std::move(sink), timeout_ms);
        else
          held->push_back(std::move(sink));
        turnstile_.ordered(piece.shard);
      };
      transport->on_end = [held] {
        for (const auto& sink : *held) sink->ended(net::FetchEnd::peer_failed);
      };
      return transport;
    };
  }
  void start_trainers(const std::string& restore_timeout_ms = "20000") {
    std::uint32_t rank = 0;
    for (const char* node : {"a", "b", "c"})
      trainers_.push_back(std::make_unique<Trainer>(cluster_, node, rank++, 1'500'000,
                                                    OptionPairs{{"restore_timeout_ms", restore_timeout_ms}}));
  }
  bool leads_all(const std::string& node) {
    const auto status = cluster_.status(node);
    return status.at("is_leader").get<bool>() && status.at("nodes_present").size() == 3;
  }
  net::PeerId id(const std::string& node) { return cluster_.status(node).at("node_id").get<net::PeerId>(); }

  // All ranks restore. Only that on node b does not get its state. `strike` runs when node c has waited for node b for
  // longer than for a piece that nobody knows.
  template <class Strike>
  void expect_restored_after(const Strike& strike) {
    const net::PeerId kept = id("a"), starving = id("b");
    std::vector<ckpt_status> answers;
    std::thread restoring([&] { answers = on_all(trainers_, [](Trainer& trainer) { return trainer.restore(); }); });
    // Node b is asked at most once in a millisecond.
    EXPECT_TRUE(eventually([&] { return said_coming_ > 1200; }));
    EXPECT_THAT(asked_.sources(), Each(starving));
    strike();
    restoring.join();
    EXPECT_THAT(asked_.sources(), Contains(kept));
    for (const std::size_t rank : {0, 2}) {
      EXPECT_EQ(answers[rank], CKPT_OK) << trainers_[rank]->error();
      EXPECT_TRUE(trainers_[rank]->holds(iteration_));
    }
  }

  std::atomic<bool> hangs_ = false, gets_parts_ = false;
  std::atomic<int> said_coming_ = 0;
  Acquainted *b_ = nullptr, *c_ = nullptr;
  Asked asked_;
  Turnstile turnstile_;
  AgentCluster cluster_{3};
  std::vector<std::unique_ptr<Trainer>> trainers_;
  std::int64_t iteration_ = 0;
};

TEST_F(RestoreChainJobTest, RestoresFromAnotherNodeIfThePreviousOneEndsBeforeSending) {
  expect_restored_after([&] { cluster_.stop("b"); });
}

TEST_F(RestoreChainJobTest, RestoresFromAnotherNodeIfThePreviousOneHangsBeforeSending) {
  expect_restored_after([&] { hangs_ = true; });
}

TEST_F(RestoreChainJobTest, NodeContinuesServingTheChainAfterItsSourceBreaks) {
  const net::PeerId kept = id("a");
  gets_parts_ = true;
  EXPECT_THAT(on_all(trainers_, [](Trainer& trainer) { return trainer.restore(); }), Each(CKPT_OK));
  for (const auto& trainer : trainers_) EXPECT_TRUE(trainer->holds(iteration_)) << trainer->error();
  EXPECT_GE(cluster_.status("b").at("counters").at("failed_fetches"), 1);
  EXPECT_THAT(asked_.sources(), Not(Contains(kept)));
  EXPECT_FALSE(asked_.asked_twice());
}

}  // namespace
}  // namespace ckpt::agent
