// Whole agents and engines: a rank loads its shard while the shard arrives at its node.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "cluster.hpp"

namespace ckpt::agent {
namespace {

using testing::AgentCluster;
using ::testing::Each;
using testing::eventually;
using ::testing::HasSubstr;
using testing::on_all;
using testing::Trainer;

constexpr std::size_t kept_bytes = 3u << 20;

// Keeps back what comes behind the first kept_bytes, and the end, until it is told how to go on.
class KeepsBack : public net::Sink {
 public:
  explicit KeepsBack(std::shared_ptr<net::Sink> inner) : inner_(std::move(inner)) {}
  std::optional<std::span<std::byte>> begin(std::span<const std::byte> manifest, std::size_t data_bytes) override {
    return inner_->begin(manifest, data_bytes);
  }
  void received(std::size_t offset_bytes, std::size_t size_bytes) override {
    if (offset_bytes + size_bytes <= kept_bytes) return inner_->received(offset_bytes, size_bytes);
    const std::lock_guard lock(mutex_);
    chunks_.emplace_back(offset_bytes, size_bytes);
  }
  void ended(net::FetchEnd end) override {
    const std::lock_guard lock(mutex_);
    end_ = end;
  }

  // Once the transport has done its part.
  bool has_ended() {
    const std::lock_guard lock(mutex_);
    return end_.has_value();
  }
  void go_on() {
    for (const auto& [offset_bytes, size_bytes] : chunks_) inner_->received(offset_bytes, size_bytes);
    inner_->ended(*end_);
  }
  void break_off() { inner_->ended(net::FetchEnd::peer_failed); }

 private:
  const std::shared_ptr<net::Sink> inner_;
  std::mutex mutex_;
  std::vector<std::pair<std::size_t, std::size_t>> chunks_;
  std::optional<net::FetchEnd> end_;
};

// Two nodes with a rank each, which hold both shards. Node b loses its memory. When it fetches its rank's shard, the
// first part of it arrives, and then nothing more.
class EarlyLoadJobTest : public ::testing::Test {
 protected:
  EarlyLoadJobTest() {
    for (const char* node : {"a", "b"}) cluster_.start(node);
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
    cluster_.destroy("b");
    cluster_.start("b", {}, testing::wrapped([this](std::unique_ptr<net::Transport> inner) {
                     auto transport = std::make_unique<test::FakeTransport>(std::move(inner));
                     transport->on_fetch = [this, &real = transport->inner()](auto from, auto piece, auto part,
                                                                              auto sink, auto timeout_ms) {
                       if (piece.shard == "rank1" && keeps_back_ == nullptr)
                         sink = keeps_back_ = std::make_shared<KeepsBack>(std::move(sink));
                       else if (piece.shard == "rank1")
                         went_on_at_ = part.first_byte;
                       if (piece.shard == "rank1") ++fetches_;
                       real.fetch(from, piece, part, std::move(sink), timeout_ms);
                     };
                     return transport;
                   }));
    start_trainers();
  }

  void start_trainers() {
    std::uint32_t rank = 0;
    for (const char* node : {"a", "b"})
      trainers_.push_back(std::make_unique<Trainer>(cluster_, node, rank++, 1'500'000));
  }
  // All ranks restore. `strike` runs when the first part of the shard is in the tensors, and the rest is not.
  template <class Strike>
  void expect_exact_bytes_after(const Strike& strike) {
    std::vector<ckpt_status> answers;
    std::thread restoring([&] {
      answers = on_all(trainers_, [&](Trainer& trainer) {
        if (asks_for_layout_) {
          EXPECT_THAT(trainer.stored_layout(), HasSubstr("weights")) << trainer.error();
        }
        return trainer.restore();
      });
    });
    EXPECT_TRUE(eventually([&] { return trainers_[1]->holds_first(kept_bytes / sizeof(float), iteration_); }));
    EXPECT_TRUE(eventually([&] { return fetches_ != 0 && keeps_back_->has_ended(); }));
    EXPECT_FALSE(trainers_[1]->holds_first(1'500'000, iteration_));
    strike();
    restoring.join();
    EXPECT_THAT(answers, Each(CKPT_OK)) << trainers_[1]->error();
    for (const auto& trainer : trainers_) EXPECT_TRUE(trainer->holds(iteration_));
    EXPECT_EQ(trainers_[1]->restored().main_tier, CKPT_TIER_PEER);
  }

  // Whether node b has the shard's piece of the newest checkpoint.
  bool is_whole(const std::string& shard) {
    const auto status = cluster_.status("b");
    for (const auto& segment : status.at("segments"))
      for (const auto& slot : segment.at("slots"))
        if (segment.at("shard") == shard && slot.at("state") == "whole") return true;
    return false;
  }

  bool asks_for_layout_ = false;
  std::atomic<int> fetches_ = 0;
  std::atomic<std::uint64_t> went_on_at_ = 0;
  std::shared_ptr<KeepsBack> keeps_back_;  // of the first fetch; written before it is counted
  AgentCluster cluster_{2};
  std::vector<std::unique_ptr<Trainer>> trainers_;
  std::int64_t iteration_ = 0;
};

TEST_F(EarlyLoadJobTest, LoadsArrivedBytesIntoTensorsWhileTheSourceStops) {
  expect_exact_bytes_after([&] { keeps_back_->go_on(); });
  EXPECT_EQ(fetches_, 1);
}

TEST_F(EarlyLoadJobTest, ReturnsTheLayoutWhileTheSourceStops) {
  asks_for_layout_ = true;
  expect_exact_bytes_after([&] { keeps_back_->go_on(); });
  EXPECT_EQ(fetches_, 1);
}

// The agent has nobody to answer when the last byte comes.
TEST_F(EarlyLoadJobTest, RestoresBytesThatArriveWhileTensorsAreMadeWithoutCountingThatTimeAsFetch) {
  const auto asked_at = Clock::now();
  EXPECT_THAT(on_all(trainers_, [](Trainer& trainer) { return trainer.stored_layout(); }), Each(HasSubstr("weights")));
  ASSERT_TRUE(eventually([&] { return fetches_ != 0 && keeps_back_->has_ended(); }));
  keeps_back_->go_on();
  ASSERT_TRUE(eventually([&] { return is_whole("rank1") && is_whole("rank1.private"); }));
  const double whole_ms = milliseconds_between(asked_at, Clock::now());
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_THAT(on_all(trainers_, [](Trainer& trainer) { return trainer.restore(); }), Each(CKPT_OK));
  for (const auto& trainer : trainers_) EXPECT_TRUE(trainer->holds(iteration_));
  EXPECT_LE(trainers_[1]->restored().fetch_ms, whole_ms);
}

TEST_F(EarlyLoadJobTest, AnInterruptedAndResumedFetchGivesExactBytes) {
  expect_exact_bytes_after([&] { keeps_back_->break_off(); });
  EXPECT_EQ(fetches_, 2);
  EXPECT_EQ(went_on_at_, kept_bytes);
}

}  // namespace
}  // namespace ckpt::agent
