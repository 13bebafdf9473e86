// What every replica source owes its caller (replica_source.hpp), of each source in turn.
#include "agent/transfers/replica_source.hpp"

#include <gtest/gtest.h>

#include "sources_under_test.hpp"

namespace ckpt::agent {
namespace {

using core::FetchResult;
using testing::Coding;
using testing::Gpu;
using testing::Mishap;
using testing::owner;
using testing::Peer;
using testing::SourceUnderTest;
using testing::Storage;

using Make = std::unique_ptr<SourceUnderTest> (*)();
template <class Source>
std::unique_ptr<SourceUnderTest> make() {
  return std::make_unique<Source>();
}
struct Case {
  const char* name;
  Make make;
};

class ReplicaSourceTest : public ::testing::TestWithParam<Case> {
 protected:
  ReplicaSourceTest() { order_ = source_->order(); }

  arena::Slot slot() const { return source_->segment()->slot(order_.slot.slot); }
  FetchRequest request() {
    return {.order = order_,
            .urgent = false,
            .timeout_ms = 30'000,
            .destination = FetchDestination(source_->segment(), order_.slot.slot, order_.piece),
            .done = [this](FetchOutcome outcome) { outcomes_.push_back(std::move(outcome)); },
            .damaged =
                [this](const PieceRef& piece, bool) {
                  EXPECT_TRUE(outcomes_.empty());
                  damaged_.push_back(piece);
                }};
  }
  void start() {
    running_ = source_->source().start(request());
    ASSERT_NE(running_, nullptr);
    EXPECT_TRUE(outcomes_.empty()) << "ended within start()";
  }
  void run_tasks() {
    while (const auto task = source_->queue->take(Deadline::in_ms(0))) (*task)();
  }
  void wait_until_silent() {
    ASSERT_TRUE(testing::eventually([&] {
      run_tasks();
      return source_->is_silent();
    }));
  }
  // The outcome, and that no other comes.
  FetchOutcome outcome() {
    const bool has_ended = testing::eventually([&] {
      run_tasks();
      running_->look();
      return !outcomes_.empty();
    });
    if (!has_ended) throw std::runtime_error("the fetch did not end");
    running_->look();
    source_->drain();
    run_tasks();
    EXPECT_EQ(outcomes_.size(), 1u);
    return outcomes_.front();
  }
  void expect_nothing_made(FetchResult result) {
    const FetchOutcome last = outcome();
    EXPECT_EQ(last.result, result);
    EXPECT_EQ(last.manifest, std::nullopt);
    EXPECT_FALSE(slot().checkpoint());
  }

  const std::unique_ptr<SourceUnderTest> source_ = GetParam().make();
  core::StartFetch order_;
  std::shared_ptr<RunningFetch> running_;
  std::vector<FetchOutcome> outcomes_;
  std::vector<PieceRef> damaged_;
};

TEST_P(ReplicaSourceTest, SealsTheVerifiedPieceAndReportsItOnce) {
  start();
  const FetchOutcome last = outcome();
  EXPECT_EQ(last.result, FetchResult::complete);
  EXPECT_EQ(last.manifest, source_->piece().manifest);
  EXPECT_EQ(slot().read(), source_->piece().manifest);
  EXPECT_TRUE(std::equal(source_->piece().data.begin(), source_->piece().data.end(), slot().data()));
  EXPECT_TRUE(damaged_.empty());
}

TEST_P(ReplicaSourceTest, ReportsDamageOnceAndSealsNothing) {
  source_->strike(Mishap::damage);
  start();
  expect_nothing_made(source_->result_of_damage());
  for (const PieceRef& piece : damaged_) EXPECT_EQ(std::count(damaged_.begin(), damaged_.end(), piece), 1);
  EXPECT_EQ(damaged_.empty(), order_.source == core::storage_node) << "a piece of a node is named";
}

TEST_P(ReplicaSourceTest, ReportsAPieceThatIsGoneAsFailedOnce) {
  source_->strike(Mishap::loss);
  start();
  expect_nothing_made(FetchResult::failed);
  EXPECT_TRUE(damaged_.empty());
}

TEST_P(ReplicaSourceTest, SealsNothingAfterCancelAndEndsOnce) {
  source_->strike(Mishap::silence);
  start();
  wait_until_silent();
  running_->cancel();
  source_->answer();
  expect_nothing_made(FetchResult::failed);
}

TEST_P(ReplicaSourceTest, FailsAtItsDeadlineWithoutAnAnswer) {
  source_->strike(Mishap::silence);
  start();
  wait_until_silent();
  EXPECT_TRUE(outcomes_.empty());
  source_->let_time_pass(request().timeout_ms);
  expect_nothing_made(FetchResult::failed);
}

TEST_P(ReplicaSourceTest, FetchesIntoASlotFromWhichTheSameCheckpointWasDropped) {
  write_piece(source_->segment()->writable_slot(order_.slot.slot), source_->piece());
  source_->segment()->writable_slot(order_.slot.slot).drop(order_.piece.checkpoint);
  ASSERT_FALSE(slot().checkpoint());
  start();
  EXPECT_EQ(outcome().result, FetchResult::complete);
  EXPECT_EQ(slot().checkpoint(), order_.piece.checkpoint);
}

TEST_P(ReplicaSourceTest, SealsNothingButTheAnnouncedPiece) {
  order_.piece.root_digest += 1;
  start();
  EXPECT_NE(outcome().result, FetchResult::complete);
  EXPECT_FALSE(slot().checkpoint());
}

TEST_P(ReplicaSourceTest, IgnoresOrdersForOtherSources) {
  const auto own = order_.source;
  for (const core::NodeId other : {core::storage_node, core::parity_node, owner}) {
    if (other == own) continue;
    order_.source = other;
    EXPECT_EQ(source_->source().start(request()), nullptr) << other;
  }
  run_tasks();
  EXPECT_TRUE(outcomes_.empty());
}

INSTANTIATE_TEST_SUITE_P(OfEverySource, ReplicaSourceTest,
                         ::testing::Values(Case{"Peer", make<Peer>}, Case{"Gpu", make<Gpu>},
                                           Case{"Coding", make<Coding>}, Case{"Storage", make<Storage>}),
                         [](const auto& tested) { return tested.param.name; });

// ---- What only one of them does ----

class PeerSourceTest : public ::testing::Test {
 protected:
  // Fetches the piece. `fate`: what becomes of the fetch.
  FetchOutcome fetch(const testing::Fate& fate) {
    peer_.network().rule([&, fate](auto, const auto&, const net::FetchPart& part) {
      asked_from_ = part.first_byte;
      return fate;
    });
    auto order = peer_.order();
    order.fetch = ++fetches_;
    std::vector<FetchOutcome> outcomes;
    const auto running =
        peer_.source().start({.order = order,
                              .urgent = true,
                              .timeout_ms = 30'000,
                              .destination = FetchDestination(peer_.segment(), order.slot.slot, order.piece),
                              .done = [&](FetchOutcome outcome) { outcomes.push_back(std::move(outcome)); },
                              .damaged = [](const PieceRef&, bool) {}});
    const bool has_ended = testing::eventually([&] {
      if (fate.is_held) peer_.let_time_pass(30'000);
      while (const auto task = peer_.queue->take(Deadline::in_ms(0))) (*task)();
      return !outcomes.empty();
    });
    if (!has_ended) throw std::runtime_error("the fetch did not end");
    peer_.source().ended(order, outcomes.front());
    return outcomes.front();
  }
  void expect_sealed() {
    EXPECT_EQ(slot().read(), peer_.piece().manifest);
    EXPECT_TRUE(std::equal(peer_.piece().data.begin(), peer_.piece().data.end(), slot().data()));
  }
  arena::Slot slot() { return peer_.segment()->slot(peer_.order().slot.slot); }

  static constexpr std::size_t half_bytes = testing::length_bytes / 2 / testing::leaf * testing::leaf;
  Peer peer_;
  std::uint64_t fetches_ = 0;
  std::uint64_t asked_from_ = 0;
};

TEST_F(PeerSourceTest, ResumesWhereTheLastFetchFailed) {
  EXPECT_EQ(fetch({.end = net::FetchEnd::peer_failed}).result, FetchResult::failed);
  EXPECT_EQ(asked_from_, 0u);
  EXPECT_FALSE(slot().checkpoint());
  const FetchOutcome last = fetch({});
  EXPECT_EQ(asked_from_, half_bytes);
  EXPECT_EQ(last.result, FetchResult::complete);
  EXPECT_EQ(last.network_bytes, testing::length_bytes - half_bytes);
  expect_sealed();
}

TEST_F(PeerSourceTest, FailedFetchKeepsBytesVerifiedEarlier) {
  fetch({.end = net::FetchEnd::peer_failed});
  fetch({.wrong_byte = 3});
  EXPECT_EQ(asked_from_, half_bytes);
  fetch({.is_held = true});
  EXPECT_EQ(asked_from_, half_bytes);
  EXPECT_EQ(fetch({}).result, FetchResult::complete);
  EXPECT_EQ(asked_from_, half_bytes);
  expect_sealed();
}

TEST_F(PeerSourceTest, RefetchesBytesThatChangedInTheSlot) {
  fetch({.end = net::FetchEnd::peer_failed});
  peer_.segment()->writable_slot(peer_.order().slot.slot).data()[3 * testing::leaf + 7] ^= std::byte{1};
  EXPECT_EQ(fetch({}).result, FetchResult::complete);
  EXPECT_EQ(asked_from_, 3 * testing::leaf);
  expect_sealed();
}

TEST_F(PeerSourceTest, FetchesACompletedPieceFromTheStart) {
  fetch({.end = net::FetchEnd::peer_failed});
  fetch({});
  EXPECT_EQ(fetch({}).result, FetchResult::complete);
  EXPECT_EQ(asked_from_, 0u);
}

TEST(GpuSource, LeavesUrgentFetchesToThePeerSource) {
  Gpu gpu;
  EXPECT_EQ(gpu.source().start({.order = gpu.order(),
                                .urgent = true,
                                .timeout_ms = 30'000,
                                .destination = FetchDestination(gpu.segment(), 0, gpu.order().piece),
                                .done = nullptr,
                                .damaged = nullptr}),
            nullptr);
}

TEST(StorageReader, ExplainsWhatToDoWithoutStorage) {
  Storage storage;
  StorageReader reader(nullptr, *storage.queue);
  std::vector<FetchOutcome> outcomes;
  const auto running = reader.start({.order = storage.order(),
                                     .urgent = false,
                                     .timeout_ms = 30'000,
                                     .destination = FetchDestination(storage.segment(), 0, storage.order().piece),
                                     .done = [&](FetchOutcome outcome) { outcomes.push_back(std::move(outcome)); },
                                     .damaged = nullptr});
  ASSERT_NE(running, nullptr);
  EXPECT_TRUE(outcomes.empty());
  while (const auto task = storage.queue->take(Deadline::in_ms(0))) (*task)();
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_EQ(outcomes[0].result, FetchResult::failed);
  EXPECT_NE(outcomes[0].trouble.find("option storage"), std::string::npos);
}

}  // namespace
}  // namespace ckpt::agent
