#include "agent/pieces/segments.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support.hpp"

namespace ckpt::agent {
namespace {

using core::held_rank;
using core::SlotRef;
using ::testing::HasSubstr;
using testing::make_piece;

constexpr std::uint64_t mebi = 1u << 20;

class SegmentsTest : public ::testing::Test {
 protected:
  // What one run of the agent has; the next one begins with restart().
  struct AgentRun {
    AgentRun(const std::string& directory, Segments::Limits limits, std::set<SegmentKey>& busy)
        : arena(directory, "job", "node"),
          segments(arena, limits, index, queue, [&busy](const SegmentKey& key) { return busy.contains(key); }) {}
    arena::NodeArena arena;
    PieceIndex index;
    CoreQueue queue{100};
    Segments segments;
  };

  void restart(std::uint64_t budget_bytes = 0) {
    agent_run_.reset();
    agent_run_ =
        std::make_unique<AgentRun>(directory_.path() + "/node", Segments::Limits{budget_bytes, 3, 4, 2}, busy_);
    notices_.clear();
    recovered_ = agent_run_->segments.recover(granted_, notices_);
  }

  // Runs the core thread's tasks until the request is answered.
  std::optional<Failure> ensure(const SegmentKey& key, SlotNeed need, std::uint64_t extra_bytes = 0) {
    std::optional<std::optional<Failure>> answer;
    segments().ensure({{key, need}}, extra_bytes, [&](const std::optional<Failure>& failure) { answer = failure; });
    while (!answer) {
      const auto task = agent_run_->queue.take(Deadline::in_ms(30'000));
      if (!task) throw std::runtime_error("no answer");
      (*task)();
    }
    return *answer;
  }

  void put(const SlotRef& slot, CheckpointId checkpoint, std::size_t length_bytes) {
    const auto segment = segments().find({slot.rank, slot.shard});
    const auto piece = make_piece(slot.shard, checkpoint, length_bytes);
    write_piece(segment->writable_slot(slot.slot), piece);
    agent_run_->index.add(slot, segment, piece.manifest);
  }
  bool has(const SlotRef& slot, CheckpointId checkpoint, std::size_t length_bytes) {
    const auto expected = make_piece(slot.shard, checkpoint, length_bytes);
    const auto found = segments().find({slot.rank, slot.shard})->slot(slot.slot);
    return found.read() == expected.manifest && std::equal(expected.data.begin(), expected.data.end(), found.data());
  }
  std::size_t segment_files() const {
    std::size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path() + "/node"))
      files += entry.path().extension() == ".segment";
    return files;
  }
  Segments& segments() { return agent_run_->segments; }

  test::TemporaryDirectory directory_{test::in_memory};
  std::set<SegmentKey> busy_;
  std::vector<core::Recovered::Granted> granted_;
  std::vector<std::string> notices_;
  core::Recovered recovered_;
  std::unique_ptr<AgentRun> agent_run_;
};

TEST_F(SegmentsTest, CreatesASegmentOnDemandAndFindsItAgain) {
  restart();
  EXPECT_TRUE(recovered_.slots.empty());
  const SegmentKey local{0, "rank0"}, held{held_rank, "rank1"};
  EXPECT_EQ(ensure(local, {mebi, 500}), std::nullopt);
  EXPECT_EQ(ensure(held, {2 * mebi, 500}), std::nullopt);
  EXPECT_EQ(segments().find(local)->spec().slots, 3u);
  EXPECT_EQ(segments().find(held)->spec().slots, 2u);
  put({0, "rank0", 1}, {1, 4}, mebi);
  put({held_rank, "rank1", 0}, {1, 4}, 2 * mebi);
  segments().find(held)->writable_slot(1).begin();  // a transfer that this agent does not finish

  restart();
  EXPECT_EQ(recovered_.slots.size(), 5u);
  std::vector<SlotRef> whole;
  for (const auto& slot : recovered_.slots)
    if (slot.whole) whole.push_back(slot.slot);
  EXPECT_THAT(whole, ::testing::UnorderedElementsAre(SlotRef{0, "rank0", 1}, SlotRef{held_rank, "rank1", 0}));
  ASSERT_NE(agent_run_->index.find("rank1", {1, 4}), nullptr);
  EXPECT_TRUE(has({0, "rank0", 1}, {1, 4}, mebi));
}

TEST_F(SegmentsTest, KeepsASegmentThatIsLargeEnough) {
  restart();
  const SegmentKey key{0, "rank0"};
  ensure(key, {mebi, 500});
  const auto before = segments().find(key);
  EXPECT_EQ(ensure(key, {mebi / 2, 500}), std::nullopt);
  EXPECT_EQ(segments().find(key), before);
}

TEST_F(SegmentsTest, EnlargedSegmentKeepsItsPieces) {
  restart();
  const SegmentKey key{0, "rank0"};
  ensure(key, {mebi, 500});
  put({0, "rank0", 0}, {1, 4}, mebi);
  put({0, "rank0", 2}, {1, 5}, mebi - 3);
  const Pin reader = agent_run_->index.find("rank0", {1, 4});
  EXPECT_EQ(ensure(key, {3 * mebi, 5000}), std::nullopt);
  EXPECT_TRUE(segments().find(key)->slot(0).fits(3 * mebi, 5000));
  EXPECT_TRUE(has({0, "rank0", 0}, {1, 4}, mebi));
  EXPECT_TRUE(has({0, "rank0", 2}, {1, 5}, mebi - 3));
  EXPECT_EQ(agent_run_->index.find("rank0", {1, 5})->segment().path(), segments().find(key)->path());
  EXPECT_EQ(reader->data()[100], make_piece("rank0", {1, 4}, mebi).data[100]) << "who reads the old one still can";
  EXPECT_EQ(segment_files(), 1u);
  restart();
  EXPECT_TRUE(has({0, "rank0", 0}, {1, 4}, mebi));
}

TEST_F(SegmentsTest, AddsASlotInPlaceDuringATransfer) {
  restart();
  const SegmentKey key{0, "rank0"};
  ensure(key, {mebi, 500});
  put({0, "rank0", 1}, {1, 4}, mebi);
  busy_.insert(key);
  const auto before = segments().find(key);
  EXPECT_EQ(ensure(key, {0, 0, 4}), std::nullopt);
  EXPECT_EQ(segments().find(key), before);
  EXPECT_EQ(before->slots(), 4u);
  put({0, "rank0", 3}, {1, 5}, mebi);
  restart();
  EXPECT_EQ(recovered_.slots.size(), 4u);
  EXPECT_TRUE(has({0, "rank0", 1}, {1, 4}, mebi));
  EXPECT_TRUE(has({0, "rank0", 3}, {1, 5}, mebi));
}

TEST_F(SegmentsTest, KeepsAnAddedSlotWhenTheStateGrows) {
  restart();
  const SegmentKey key{0, "rank0"};
  ensure(key, {mebi, 500, 4});
  put({0, "rank0", 3}, {1, 5}, mebi);
  EXPECT_EQ(ensure(key, {2 * mebi, 500}), std::nullopt);
  EXPECT_EQ(segments().find(key)->slots(), 4u);
  EXPECT_TRUE(has({0, "rank0", 3}, {1, 5}, mebi));
}

TEST_F(SegmentsTest, RefusesAnAddedSlotBeyondTheBudgetAndKeepsTheOthers) {
  restart(14 * mebi);
  const SegmentKey key{0, "rank0"};
  ASSERT_EQ(ensure(key, {4 * mebi, 500}), std::nullopt);
  put({0, "rank0", 2}, {1, 5}, 4 * mebi);
  const std::uint64_t before = segments().bytes_used();
  const auto failure = ensure(key, {0, 0, 4});
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->status(), CKPT_ERR_NO_SPACE);
  EXPECT_THAT(failure->what(), HasSubstr("the arena needs 5 MiB more"));
  EXPECT_EQ(segments().find(key)->slots(), 3u);
  EXPECT_EQ(segments().bytes_used(), before);
  EXPECT_TRUE(has({0, "rank0", 2}, {1, 5}, 4 * mebi));
}

TEST_F(SegmentsTest, PieceDroppedDuringEnlargementStaysDropped) {
  restart();
  const SegmentKey key{0, "rank0"};
  const SlotRef slot{0, "rank0", 1};
  ensure(key, {mebi, 500});
  put(slot, {1, 4}, mebi);
  bool done = false;
  segments().ensure({{key, {2 * mebi, 500}}}, 0, [&](const std::optional<Failure>&) { done = true; });
  segments().find(key)->writable_slot(1).drop({1, 4});
  agent_run_->index.drop(slot, [] {});
  while (!done) (*agent_run_->queue.take(Deadline::in_ms(30'000)))();
  EXPECT_FALSE(segments().find(key)->slot(1).checkpoint());
  EXPECT_EQ(agent_run_->index.find(slot), nullptr);
  restart();
  EXPECT_EQ(agent_run_->index.find(slot), nullptr);
}

TEST_F(SegmentsTest, EnlargesABusySegmentAfterItsTransfer) {
  restart();
  const SegmentKey key{held_rank, "rank1"};
  ensure(key, {mebi, 500});
  busy_.insert(key);
  bool done = false;
  segments().ensure({{key, {2 * mebi, 500}}}, 0, [&](const std::optional<Failure>&) { done = true; });
  EXPECT_EQ(ensure({held_rank, "other"}, {mebi, 500}), std::nullopt) << "others need not wait";
  EXPECT_FALSE(done);
  busy_.clear();
  segments().unblock();
  while (!done) (*agent_run_->queue.take(Deadline::in_ms(30'000)))();
  EXPECT_TRUE(segments().find(key)->slot(0).fits(2 * mebi, 500));
}

TEST_F(SegmentsTest, KeepsTheOlderOfTwoSegmentsLeftByACrash) {
  restart();
  ensure({0, "rank0"}, {mebi, 500});
  put({0, "rank0", 0}, {1, 4}, mebi);
  agent_run_->arena.create_segment(testing::segment_spec(0, "rank0", 2 * mebi), 1);  // its pieces were not copied yet
  ASSERT_EQ(segment_files(), 2u);
  restart();
  EXPECT_EQ(segment_files(), 1u);
  EXPECT_TRUE(has({0, "rank0", 0}, {1, 4}, mebi));
  EXPECT_EQ(notices_.size(), 1u);
}

TEST_F(SegmentsTest, KeepsToTheBudgetAndNamesIt) {
  restart(20 * mebi);
  EXPECT_EQ(ensure({0, "rank0"}, {4 * mebi, 500}), std::nullopt);  // three slots
  const auto failure = ensure({1, "rank1"}, {4 * mebi, 500});
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->status(), CKPT_ERR_NO_SPACE);
  EXPECT_THAT(failure->what(), HasSubstr("arena_bytes"));
  EXPECT_EQ(segment_files(), 1u);
  EXPECT_EQ(ensure({1, "rank1"}, {mebi, 500}, mebi), std::nullopt);
  EXPECT_TRUE(ensure({2, "rank2"}, {1, 1}, 6 * mebi)) << "what must be left for others counts";
}

TEST_F(SegmentsTest, RefusesMoreThanTheFileSystemHasBeforeCreatingAFile) {
  restart();
  const std::uint64_t too_much = segments().space_left_bytes();
  const auto failure = ensure({0, "rank0"}, {too_much, 500});
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->status(), CKPT_ERR_NO_SPACE);
  EXPECT_THAT(failure->what(), HasSubstr("arena_dir"));
  EXPECT_EQ(segment_files(), 0u);
}

TEST_F(SegmentsTest, KeepsGrantedSlotsOfALivingTrainerUndecidedAfterRestart) {
  restart();
  ensure({0, "rank0"}, {mebi, 500});
  ensure({0, "rank0.private"}, {1000, 500});
  put({0, "rank0", 1}, {1, 4}, mebi);
  put({0, "rank0", 2}, {1, 5}, mebi);
  put({0, "rank0.private", 0}, {1, 5}, 1000);
  granted_ = {{0, {{0, "rank0", 2}, {0, "rank0.private", 0}}}};
  restart();
  EXPECT_EQ(recovered_.granted.size(), 1u);
  EXPECT_NE(agent_run_->index.find("rank0", {1, 4}), nullptr);
  EXPECT_EQ(agent_run_->index.find("rank0", {1, 5}), nullptr);
  EXPECT_EQ(agent_run_->index.find("rank0.private", {1, 5}), nullptr);
  EXPECT_EQ(recovered_.slots.size(), 6u);
}

// Of which checkpoint it was, nobody can tell any more: it may have been the newest that this node has seen.
TEST_F(SegmentsTest, UnreadablePieceAfterRestartCountsAsDamageToTheNewestSeen) {
  restart();
  const std::string parity = std::string(core::parity_prefix) + "0";
  ASSERT_EQ(ensure({held_rank, parity}, {mebi, 500}), std::nullopt);
  put({held_rank, parity, 0}, {1, 4}, mebi);
  agent_run_->arena.remember({{1, 4}, {1, 5}, 1, {}});
  restart();
  EXPECT_EQ(recovered_.newest_damaged, CheckpointId(1, 5));
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_THAT(notices_.front(), HasSubstr("dropped a damaged piece"));
}

TEST_F(SegmentsTest, FindsATruncatedSegmentAndRecreatesIt) {
  restart();
  ensure({0, "rank0"}, {mebi, 500});
  ensure({1, "rank1"}, {mebi, 500});
  EXPECT_TRUE(segments().take_damaged().empty());
  std::filesystem::resize_file(segments().find({0, "rank0"})->path(), 4096);
  const auto damaged = segments().take_damaged();
  ASSERT_EQ(damaged.size(), 1u);
  EXPECT_EQ(damaged.front().first, (SegmentKey{0, "rank0"}));
  EXPECT_EQ(segments().find({0, "rank0"}), nullptr);
  EXPECT_EQ(segment_files(), 1u);
  EXPECT_EQ(ensure({0, "rank0"}, {mebi, 500}), std::nullopt);
  EXPECT_TRUE(segments().take_damaged().empty());
}

TEST_F(SegmentsTest, KeepsUsingAndCountsASegmentWhoseFileWasRemoved) {
  restart();
  ensure({0, "rank0"}, {mebi, 500});
  put({0, "rank0", 0}, {1, 4}, mebi);
  EXPECT_EQ(segments().nameless_bytes(), 0u);
  const auto segment = segments().find({0, "rank0"});
  std::filesystem::remove(segment->path());
  EXPECT_EQ(segments().nameless_bytes(), segment->size_bytes());
  EXPECT_TRUE(has({0, "rank0", 0}, {1, 4}, mebi));
  std::ofstream(segment->path()) << "of a successor";
  segments().remove({0, "rank0"});
  EXPECT_EQ(segment_files(), 1u) << "the successor's file is not this one's to remove";
}

TEST_F(SegmentsTest, RemovedSegmentFreesItsMemory) {
  restart();
  ensure({held_rank, "rank1"}, {mebi, 500});
  EXPECT_GT(segments().bytes_used(), 2 * mebi);
  segments().remove({held_rank, "rank1"});
  EXPECT_EQ(segments().bytes_used(), 0u);
  EXPECT_EQ(segment_files(), 0u);
  segments().remove({held_rank, "rank1"});
}

}  // namespace
}  // namespace ckpt::agent
