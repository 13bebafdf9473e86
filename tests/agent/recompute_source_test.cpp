// A node repeats the update of another node's shard instead of fetching the result, and fetches it whenever that does
// not give the same bytes.
#include "agent/transfers/recompute_source.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "agent/transfers/peer_source.hpp"
#include "arena/gradient_record.hpp"
#include "parity_group.hpp"

namespace ckpt::agent {
namespace {

using core::FetchResult;
using testing::Fate;
using ::testing::HasSubstr;

constexpr std::size_t elements = 50'003;  // several leaves, whose ends are not those of the tensors
constexpr std::uint64_t tensor_bytes = elements * sizeof(float), counter_bytes = 40;
constexpr std::uint64_t length_bytes = 3 * tensor_bytes + counter_bytes;
constexpr CheckpointId before{5, 69}, after{5, 70};
constexpr core::NodeId owner = 11;

struct Shard {
  std::vector<std::byte> data = std::vector<std::byte>(length_bytes);
  arena::Manifest manifest;

  float* tensor(std::size_t number) { return reinterpret_cast<float*>(data.data()) + number * elements; }
  void describe(CheckpointId checkpoint, const char* parameter) {
    const auto each = [](const char* name) { return arena::LayoutEntry{name, CKPT_F32, {elements}, 0, 0}; };
    const auto layout =
        arena::pack({each("a.m"), each("b.v"), each(parameter), {"step", CKPT_U8, {counter_bytes}, 0, 0}});
    manifest = {"rank1", checkpoint, length_bytes, 0, 2, 0, arena::layout_text(layout), {}};
    manifest.layout_hash = arena::layout_hash(manifest.layout);
    manifest.leaves.resize(kernels::leaf_count(length_bytes));
    kernels::digest_leaves(data.data(), length_bytes, manifest.leaves.data());
    manifest.root_digest = kernels::root_digest(manifest.leaves, length_bytes);
  }
};

float number(std::size_t i, unsigned seed) {
  const std::uint32_t mixed = static_cast<std::uint32_t>(i + 1) * 2654435761U * (2 * seed + 1);
  return static_cast<float>(mixed >> 8) / 0x1000000;
}

// The piece before and after one update, the owner's slot with the record of the update, and a node that has the piece
// before it.
class RecomputeSourceTest : public ::testing::Test {
 protected:
  RecomputeSourceTest() {
    for (std::size_t i = 0; i < elements; ++i) {
      for (unsigned t = 0; t < 3; ++t) before_.tensor(t)[i] = number(i, t);
      gradient_[i] = number(i, 7) - 0.5F;
    }
    std::memset(before_.data.data() + 3 * tensor_bytes, 3, counter_bytes);
    before_.describe(before, "c.p");
    after_.data = before_.data;
    kernels::update(step_,
                    kernels::AdamState{{after_.tensor(2), after_.tensor(2), nullptr, 0, 0},
                                       {after_.tensor(0), after_.tensor(0), nullptr, 0, 0},
                                       {after_.tensor(1), after_.tensor(1), nullptr, 0, 0},
                                       {}},
                    std::span<const float>(gradient_));
    std::memset(after_.data.data() + 3 * tensor_bytes, 4, counter_bytes);
    after_.describe(after, "c.p");
    record_.base = before;
    record_.checkpoint = after;
    record_.piece_bytes = length_bytes;
    record_.layout_hash = after_.manifest.layout_hash;
    record_.steps = {step_};
    record_.updated = {{elements, 0, 2 * tensor_bytes, 0, tensor_bytes, 0, 0, 0, false}};
  }
  ~RecomputeSourceTest() override { drain(); }

  std::shared_ptr<arena::Segment> segment(core::Rank rank) {
    const std::uint64_t capacity = rank == core::held_rank ? length_bytes : arena::bytes_with_record(length_bytes);
    return std::make_shared<arena::Segment>(arena_.create_segment(testing::segment_spec(rank, "rank1", capacity), 1));
  }
  std::vector<std::byte> record_bytes() {
    record_.copied = {{3 * tensor_bytes, 0, counter_bytes}};
    const std::uint64_t head = arena::description_bytes(record_);
    for (auto& updated : record_.updated) updated.gradient_at = head;
    record_.copied[0].record_at = head + tensor_bytes;
    auto bytes = arena::encode(record_);
    const auto append = [&](const void* data, std::size_t size) {
      const auto* first = static_cast<const std::byte*>(data);
      bytes.insert(bytes.end(), first, first + size);
    };
    append(gradient_.data(), tensor_bytes);
    append(after_.data.data() + 3 * tensor_bytes, counter_bytes);
    return bytes;
  }
  // The owner has captured the piece after the update.
  void capture(bool with_record = true) {
    theirs_ = segment(1);
    auto slot = theirs_->writable_slot(0);
    slot.begin();
    std::copy(after_.data.begin(), after_.data.end(), slot.data());
    if (with_record) {
      const auto bytes = record_bytes();
      sent_record_ = bytes.size();
      const auto place = slot.record_place(length_bytes, bytes.size());
      ASSERT_TRUE(place);
      std::copy(bytes.begin(), bytes.end(), place->data);
      kernels::digest_leaves(bytes.data(), bytes.size(), place->digests);
      slot.seal_record(after, length_bytes, bytes.size());
    }
    slot.seal(after_.manifest);
    network_.index(owner).add({1, "rank1", 0}, theirs_, after_.manifest);
  }
  // This node has the piece before it.
  void hold() {
    auto slot = ours_->writable_slot(0);
    slot.begin();
    std::copy(before_.data.begin(), before_.data.end(), slot.data());
    slot.seal(before_.manifest);
    index_.add({core::held_rank, "rank1", 0}, ours_, before_.manifest);
  }

  core::StartFetch order() const { return {1, piece_info(after_.manifest), owner, {core::held_rank, "rank1", 1}, {}}; }
  std::shared_ptr<RunningFetch> start() {
    outcome_.reset();
    return source_.start({.order = order(),
                          .urgent = false,
                          .timeout_ms = 30'000,
                          .destination = FetchDestination(ours_, 1, order().piece),
                          .done =
                              [this](FetchOutcome outcome) {
                                EXPECT_FALSE(outcome_) << "it ended twice";
                                outcome_ = std::move(outcome);
                              },
                          .damaged = [](const PieceRef&, bool) {}});
  }
  void run_tasks() {
    while (const auto task = queue_->take(Deadline::in_ms(0))) (*task)();
  }
  FetchOutcome fetch() {
    running_ = start();
    if (running_ == nullptr) throw std::runtime_error("the order was left to the next source");
    return end();
  }
  FetchOutcome end() {
    const bool has_ended = testing::eventually([&] {
      run_tasks();
      return outcome_.has_value();
    });
    if (!has_ended) throw std::runtime_error("the fetch did not end");
    return *outcome_;
  }
  void drain() {
    network_.drain();
    pool_.drain();
    network_.drain();
    run_tasks();
  }
  // Whatever way it came: the owner's bytes.
  void expect_the_piece(const FetchOutcome& outcome) {
    EXPECT_EQ(outcome.result, FetchResult::complete);
    EXPECT_EQ(outcome.manifest, after_.manifest);
    EXPECT_EQ(ours_->slot(1).read(), after_.manifest);
    EXPECT_TRUE(std::equal(after_.data.begin(), after_.data.end(), ours_->slot(1).data()));
  }
  void expect_counted(std::uint64_t recomputed, std::uint64_t in_vain, std::uint64_t not_recomputed) {
    EXPECT_EQ(counters_.recomputed, recomputed);
    EXPECT_EQ(counters_.recomputed_in_vain, in_vain);
    EXPECT_EQ(counters_.not_recomputed, not_recomputed);
  }
  // What a test does to the fetches of records, and to those of pieces.
  void rule(Fate records, Fate pieces) {
    network_.rule([records, pieces](auto, const net::PieceName& name, const auto&) {
      return name.shard == record_name("rank1") ? records : pieces;
    });
  }

  const kernels::AdamStep step_ = kernels::adam_step({.weight_decay = 0.01, .decoupled_weight_decay = true}, 12,
                                                     {kernels::TorchForm::fused, kernels::TorchCapability::avx2});
  Shard before_, after_;
  std::vector<float> gradient_ = std::vector<float>(elements);
  arena::GradientRecord record_;
  std::size_t sent_record_ = 0;
  test::TemporaryDirectory directory_{test::in_memory};
  arena::NodeArena arena_{directory_.path() + "/node", "job", "node"};
  std::shared_ptr<arena::Segment> ours_ = segment(core::held_rank), theirs_;
  const std::shared_ptr<CoreQueue> queue_ = std::make_shared<CoreQueue>(100);
  PieceIndex index_;
  ArrivingPieces arriving_{0};
  RecomputeCounters counters_;
  std::vector<std::string> notices_;
  WorkerPool pool_{2};
  testing::FakeNetwork network_{100'000, false};
  const std::unique_ptr<net::Transport> transport_ = testing::transport_over(network_);
  std::shared_ptr<TransportPort> port_ = std::make_shared<TransportPort>(*transport_);
  PeerSource peer_{pool_, *queue_, port_, index_, arriving_};
  RecomputeSource source_{
      {pool_, *queue_, port_, index_, peer_, counters_, [this](const std::string& text) { notices_.push_back(text); }}};
  std::shared_ptr<RunningFetch> running_;
  std::optional<FetchOutcome> outcome_;
};

TEST_F(RecomputeSourceTest, RepeatsTheUpdateAndFetchesOnlyTheGradients) {
  capture();
  hold();
  const FetchOutcome outcome = fetch();
  expect_the_piece(outcome);
  expect_counted(1, 0, 0);
  EXPECT_EQ(outcome.network_bytes, sent_record_);
  EXPECT_EQ(network_.bytes_sent(), sent_record_);
  EXPECT_LT(sent_record_, length_bytes * 35 / 100);
  EXPECT_EQ(network_.fetches(), 1u);
  EXPECT_TRUE(notices_.empty());
}

// Two parameters, one of them with a momentum.
TEST_F(RecomputeSourceTest, RepeatsAStepOfSgd) {
  const auto rolling = kernels::sgd_step({.momentum = 0.9, .nesterov = true}, false, {}),
             plain = kernels::sgd_step({}, false, {});
  const std::span<const float> gradient(gradient_);
  after_.data = before_.data;
  kernels::update(
      rolling,
      {{after_.tensor(2), after_.tensor(2), nullptr, 0, 0}, {after_.tensor(0), after_.tensor(0), nullptr, 0, 0}},
      gradient);
  kernels::update(plain, {{after_.tensor(1), after_.tensor(1), nullptr, 0, 0}, {}}, gradient);
  after_.describe(after, "c.p");
  record_.steps = {rolling, plain};
  record_.updated.push_back({elements, 0, tensor_bytes, 0, 0, 0, 0, 1, false});
  capture();
  hold();
  expect_the_piece(fetch());
  expect_counted(1, 0, 0);
}

// Only the piece after the step says which step it was.
TEST_F(RecomputeSourceTest, RepeatsAGpuStepWithTheStepNumberInThePiece) {
  const kernels::AdamSettings settings{.weight_decay = 0.01, .decoupled_weight_decay = true};
  const float number = 12, number_before = 11;
  const auto on = [&](Shard& shard) { return shard.data.data() + 3 * tensor_bytes + 8; };
  std::memcpy(on(before_), &number_before, sizeof(number));
  before_.describe(before, "c.p");
  after_.data = before_.data;
  std::memcpy(on(after_), &number, sizeof(number));
  kernels::update(kernels::adam_step(settings, number, {kernels::TorchForm::fused, kernels::TorchCapability::cuda}),
                  kernels::AdamState{{after_.tensor(2), after_.tensor(2), nullptr, 0, 0},
                                     {after_.tensor(0), after_.tensor(0), nullptr, 0, 0},
                                     {after_.tensor(1), after_.tensor(1), nullptr, 0, 0},
                                     {}},
                  std::span<const float>(gradient_));
  after_.describe(after, "c.p");
  record_.steps = {arena::GradientRecord::CountedStep{settings}};
  record_.updated[0].count_at = 3 * tensor_bytes + 8;
  capture();
  hold();
  expect_the_piece(fetch());
  expect_counted(1, 0, 0);
}

TEST_F(RecomputeSourceTest, FetchesThePieceIfTheRepeatedUpdateGivesOtherBytes) {
  after_.tensor(2)[elements / 2] += 1;  // something else changed the parameter, too
  after_.describe(after, "c.p");
  capture();
  hold();
  const FetchOutcome outcome = fetch();
  expect_the_piece(outcome);
  expect_counted(0, 1, 0);
  EXPECT_EQ(outcome.network_bytes, sent_record_ + length_bytes);
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_THAT(notices_[0], HasSubstr("did not give the bytes of the rank that made it"));
}

TEST_F(RecomputeSourceTest, StopsRepeatingUpdatesAfterThreeFailuresInARow) {
  after_.tensor(2)[0] += 1;
  after_.describe(after, "c.p");
  capture();
  hold();
  for (std::uint32_t i = 0; i < core::RepeatedUpdates::vain_max; ++i) expect_the_piece(fetch());
  EXPECT_THAT(notices_.back(), HasSubstr("no more are repeated"));
  EXPECT_EQ(start(), nullptr);
  expect_counted(0, core::RepeatedUpdates::vain_max, 1);
}

TEST_F(RecomputeSourceTest, FetchesThePieceIfTheGradientsArriveDamaged) {
  capture();
  hold();
  for (const std::size_t wrong_byte : {std::size_t{3}, std::size_t{64}, sent_record_ / 2, sent_record_ - 1}) {
    rule({.wrong_byte = wrong_byte}, {});
    expect_the_piece(fetch());
  }
  expect_counted(0, 0, 4);
  EXPECT_EQ(notices_.size(), 4u);
}

TEST_F(RecomputeSourceTest, FetchesThePieceIfTheOwnerHasNoGradients) {
  capture(false);
  hold();
  expect_the_piece(fetch());
  expect_counted(0, 0, 1);
  EXPECT_TRUE(notices_.empty()) << "it is usual after a start";
}

TEST_F(RecomputeSourceTest, LeavesTheOrderToThePeerIfThisNodeHasNoEarlierCheckpoint) {
  capture();
  EXPECT_EQ(start(), nullptr);
  expect_counted(0, 0, 1);
  EXPECT_EQ(network_.fetches(), 0u);
}

TEST_F(RecomputeSourceTest, FetchesThePieceIfThisNodeMissedThePreviousCheckpoint) {
  before_.describe(CheckpointId(5, 68), "c.p");
  capture();
  hold();
  expect_the_piece(fetch());
  expect_counted(0, 0, 1);
  EXPECT_THAT(notices_.at(0), HasSubstr("does not have the checkpoint right before"));
}

TEST_F(RecomputeSourceTest, FetchesThePieceIfTheLayoutHasChanged) {
  before_.describe(before, "d.p");
  capture();
  hold();
  expect_the_piece(fetch());
  expect_counted(0, 0, 1);
  EXPECT_THAT(notices_.at(0), HasSubstr("its layout has changed"));
}

TEST_F(RecomputeSourceTest, NeedsNothingFromTheOwnerAfterTheGradientsArrived) {
  capture();
  hold();
  rule({}, {.end = net::FetchEnd::peer_failed});
  expect_the_piece(fetch());
  expect_counted(1, 0, 0);
}

TEST_F(RecomputeSourceTest, FailsIfTheUpdateDiffersAndTheOwnerIsDead) {
  after_.tensor(0)[9] += 1;
  after_.describe(after, "c.p");
  capture();
  hold();
  rule({}, {.end = net::FetchEnd::peer_failed});
  EXPECT_EQ(fetch().result, FetchResult::failed);
  EXPECT_FALSE(ours_->slot(1).checkpoint());
  EXPECT_EQ(ours_->slot(0).checkpoint(), before) << "the copy that this node had stays";
}

TEST_F(RecomputeSourceTest, FetchesThePieceIfTheTransferOfGradientsBreaks) {
  capture();
  hold();
  rule({.end = net::FetchEnd::timed_out}, {});
  expect_the_piece(fetch());
  expect_counted(0, 0, 1);
}

TEST_F(RecomputeSourceTest, SealsNothingAfterCancelAndEndsOnce) {
  capture();
  hold();
  rule({.is_held = true}, {});
  const auto running = start();
  ASSERT_NE(running, nullptr);
  running->cancel();
  network_.release();
  EXPECT_EQ(end().result, FetchResult::failed);
  drain();
  EXPECT_FALSE(ours_->slot(1).checkpoint());
  EXPECT_EQ(network_.fetches(), 1u);
}

TEST_F(RecomputeSourceTest, CancelsTheFetchOfThePieceAsWell) {
  capture(false);
  hold();
  rule({}, {.is_held = true});
  const auto running = start();
  ASSERT_TRUE(testing::eventually([&] {
    run_tasks();
    return network_.held() == 1;
  }));
  running->cancel();
  network_.release();
  EXPECT_EQ(end().result, FetchResult::failed);
  EXPECT_FALSE(ours_->slot(1).checkpoint());
}

TEST_F(RecomputeSourceTest, LeavesUrgentFetchesAndPrivateShardsToThePeer) {
  capture();
  hold();
  FetchRequest request{.order = order(),
                       .urgent = true,
                       .timeout_ms = 30'000,
                       .destination = FetchDestination(ours_, 1, order().piece),
                       .done = nullptr,
                       .damaged = nullptr};
  EXPECT_EQ(source_.start(request), nullptr);
  request.urgent = false;
  request.order.piece.shard = "rank1.private";
  EXPECT_EQ(source_.start(request), nullptr);
  for (const core::NodeId other : {core::storage_node, core::parity_node}) {
    request = {order(), false, 30'000, request.destination, nullptr, nullptr};
    request.order.source = other;
    EXPECT_EQ(source_.start(request), nullptr);
  }
}

}  // namespace
}  // namespace ckpt::agent
