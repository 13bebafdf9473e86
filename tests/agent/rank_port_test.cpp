#include "agent/trainers/rank_port.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include "agent/trainers/claims.hpp"
#include "support.hpp"

namespace ckpt::agent {
namespace {

using testing::make_piece;

// The trainer's side of the control page is played by hand, store by store.
class RankPortTest : public ::testing::Test {
 protected:
  RankPortTest() {
    segments_.recover({}, notices_);
    for (const char* shard : {"rank0", "rank0.private"}) {
      bool done = false;
      segments_.ensure({{{0, shard}, {10'000, 500}}}, 0, [&](const std::optional<Failure>&) { done = true; });
      while (!done) (*queue_.take(Deadline::in_ms(30'000)))();
    }
    open(std::nullopt);
  }

  void open(const std::optional<OpenGrant>& outstanding) {
    port_.reset();
    if (!control_) control_.emplace(arena::Control::create(arena_.directory(), 0));
    port_ = std::make_unique<RankPort>(hello_, arena::Control::attach(arena_.directory(), 0), outstanding,
                                       [this] { looks_.put(1); });
    port_->joined(1);
    looks_.take();  // each port begins with a look
    port_->looked();
  }

  void grant(std::uint8_t main_slot, std::uint8_t private_slot) {
    port_->grant({}, {{0, "rank0", main_slot}, {0, "rank0.private", private_slot}});
  }
  void fill(std::uint8_t main_slot, std::uint8_t private_slot, CheckpointId checkpoint) {
    write_piece(segments_.find({0, "rank0"})->writable_slot(main_slot), make_piece("rank0", checkpoint, 10'000));
    write_piece(segments_.find({0, "rank0.private"})->writable_slot(private_slot),
                make_piece("rank0.private", checkpoint, 100));
  }
  void capture(std::int64_t iteration) {
    const auto grant = control_->grant();
    control_->capturing({1, iteration});
    control_->attempted(iteration);
    fill(grant.slots[0], grant.slots[1], {1, iteration});
    control_->used_grant(grant.sequence);
    control_->capturing({});
  }

  test::TemporaryDirectory directory_{test::in_memory};
  arena::NodeArena arena_{directory_.path() + "/node", "job", "node"};
  PieceIndex index_;
  CoreQueue queue_{100};
  std::vector<std::string> notices_;
  Segments segments_{arena_, {0, 3, 2}, index_, queue_, [](const SegmentKey&) { return false; }};
  const core::TrainerHello hello_{0, 77, 0, 2, "rank0", "rank0.private"};
  testing::Mailbox<int> looks_;
  std::optional<arena::Control> control_;
  std::unique_ptr<RankPort> port_;
};

TEST_F(RankPortTest, GivesNoGrantThatTheControlPageCannotHold) {
  grant(0, 1);
  const auto given = control_->grant().word();
  EXPECT_THROW(grant(16, 1), Failure);
  const core::SlotRef slot{0, "rank0", 0};
  EXPECT_THROW(port_->grant({}, std::vector(core::captures_max + 1, slot)), Failure);
  EXPECT_EQ(control_->grant().word(), given);
}

TEST_F(RankPortTest, ReportsACaptureIntoGrantedSlotsOnce) {
  grant(2, 1);
  EXPECT_EQ(control_->grant().slots[0], 2);
  capture(5);
  auto changes = port_->look(segments_);
  ASSERT_TRUE(changes.captured);
  ASSERT_EQ(changes.captured->pieces.size(), 2u);
  EXPECT_EQ(changes.captured->pieces[0], piece_info(make_piece("rank0", {1, 5}, 10'000).manifest));
  EXPECT_EQ(changes.captured->pieces[1], piece_info(make_piece("rank0.private", {1, 5}, 100).manifest));
  EXPECT_EQ(changes.pieces[0].first, (core::SlotRef{0, "rank0", 2}));
  EXPECT_EQ(changes.progress->attempted, 5);
  EXPECT_EQ(changes.progress->capturing, -1);
  EXPECT_FALSE(changes.skipped);
  EXPECT_FALSE(port_->outstanding());
  changes = port_->look(segments_);
  EXPECT_FALSE(changes.captured);
  EXPECT_FALSE(changes.progress);
}

// A skip costs the whole job an iteration: one must never be seen where a capture has begun or ended.
TEST_F(RankPortTest, NeverMistakesACaptureForASkipAtAnyOfItsStores) {
  grant(0, 0);
  const auto grant = control_->grant();
  const std::vector<std::function<void()>> stores = {
      [&] { control_->capturing({1, 5}); },          [&] { control_->attempted(5); },  [&] { fill(0, 0, {1, 5}); },
      [&] { control_->used_grant(grant.sequence); }, [&] { control_->capturing({}); },
  };
  bool captured = false;
  for (const auto& store : stores) {
    store();
    const auto changes = port_->look(segments_);
    EXPECT_FALSE(changes.skipped);
    EXPECT_TRUE(changes.complaint.empty());
    captured = captured || changes.captured;
    if (changes.progress && changes.progress->attempted == 5) {
      EXPECT_TRUE(captured || changes.progress->capturing == 5);
    }
  }
  EXPECT_TRUE(captured);
}

TEST_F(RankPortTest, RejectsACaptureOfAnotherIncarnationAndGrantsItsSlotsAgain) {
  grant(0, 0);
  port_->joined(2);
  capture(5);
  const auto changes = port_->look(segments_);
  EXPECT_FALSE(changes.captured);
  EXPECT_FALSE(changes.complaint.empty());
  EXPECT_EQ(control_->grant().sequence, 2u);
}

TEST_F(RankPortTest, ReportsASkippedIterationAsProgressWithoutACapture) {
  control_->attempted(3);
  const auto changes = port_->look(segments_);
  EXPECT_FALSE(changes.captured);
  EXPECT_EQ(changes.progress->attempted, 3);
  EXPECT_TRUE(changes.skipped);
}

TEST_F(RankPortTest, GrantsIncompleteSlotsAgain) {
  const CheckpointId checkpoint{1, 5};
  const std::vector<std::function<void()>> lies = {
      [] {},  // nothing was written
      [&] {
        write_piece(segments_.find({0, "rank0"})->writable_slot(1), make_piece("rank0", checkpoint, 100));
      },
      [&] {  // two checkpoints
        fill(1, 1, checkpoint);
        write_piece(segments_.find({0, "rank0.private"})->writable_slot(1), make_piece("rank0.private", {1, 6}, 100));
      },
      [&] {  // of another world size
        fill(1, 1, checkpoint);
        write_piece(segments_.find({0, "rank0"})->writable_slot(1), make_piece("rank0", checkpoint, 100, 9));
      },
      [&] {
        fill(1, 1, {2, 5});
      },  // of another incarnation
  };
  port_->joined(1);
  grant(1, 1);
  for (const auto& lie : lies) {
    const auto grant = control_->grant();
    lie();
    control_->used_grant(grant.sequence);
    const auto changes = port_->look(segments_);
    EXPECT_FALSE(changes.captured);
    EXPECT_FALSE(changes.complaint.empty());
    EXPECT_EQ(control_->grant().sequence, grant.sequence + 1);
    EXPECT_EQ(control_->grant().slots[0], 1);
  }
  capture(7);
  EXPECT_TRUE(port_->look(segments_).captured);
}

TEST_F(RankPortTest, IgnoresUseOfAGrantItNeverGave) {
  fill(0, 0, {1, 5});
  control_->used_grant(99);
  auto changes = port_->look(segments_);
  EXPECT_FALSE(changes.captured);
  EXPECT_FALSE(changes.complaint.empty());
  grant(0, 0);
  changes = port_->look(segments_);
  EXPECT_FALSE(changes.captured);
}

TEST_F(RankPortTest, IgnoresACaptureOlderThanTheLast) {
  grant(0, 0);
  capture(5);
  ASSERT_TRUE(port_->look(segments_).captured);
  grant(1, 1);
  capture(4);
  EXPECT_FALSE(port_->look(segments_).captured);
}

TEST_F(RankPortTest, RestartedAgentResumesTheOpenGrant) {
  grant(2, 1);
  const auto grant = control_->grant();
  control_->capturing({1, 5});
  control_->attempted(5);
  open(OpenGrant{grant.sequence, {{0, "rank0", 2}, {0, "rank0.private", 1}}});
  EXPECT_EQ(port_->look(segments_).progress->capturing, 5);
  fill(2, 1, {1, 5});
  control_->used_grant(grant.sequence);
  control_->capturing({});
  const auto changes = port_->look(segments_);
  ASSERT_TRUE(changes.captured);
  EXPECT_EQ(changes.pieces[0].first.slot, 2);
  this->grant(0, 0);
  EXPECT_EQ(control_->grant().sequence, grant.sequence + 1);
}

TEST_F(RankPortTest, DoorbellWakesTheAgentWithoutQueueingRepeatedLooks) {
  control_->attempted(1);
  control_->ring_agent();
  looks_.take();
  for (int i = 0; i < 1000; ++i) control_->ring_agent();
  EXPECT_TRUE(looks_.empty()) << "one at a time";
  port_->looked();
  looks_.take();
  port_->looked();
}

TEST_F(RankPortTest, PassesAHaltToTheTrainerAndReportsItsAnswerOnce) {
  port_->halt({7, std::nullopt});
  EXPECT_EQ(control_->halt(), (arena::HaltWords{7, std::nullopt}));
  port_->halt({7, -1});
  EXPECT_EQ(control_->halt(), (arena::HaltWords{7, -1})) << "ranks that start anew have not finished an iteration";
  port_->halt({7, 43});
  EXPECT_EQ(control_->halt(), (arena::HaltWords{7, 43}));
  EXPECT_FALSE(port_->look(segments_).freeze);
  control_->freeze({7, 2, 43});
  const auto changes = port_->look(segments_);
  ASSERT_TRUE(changes.freeze);
  EXPECT_EQ(changes.freeze->answer, (core::FreezeAnswer{7, core::Freeze::held, 43}));
  EXPECT_FALSE(port_->look(segments_).freeze);
}

TEST_F(RankPortTest, RefusesAnImpossibleAnswerToAHalt) {
  control_->freeze({7, 200, 43});
  const auto changes = port_->look(segments_);
  EXPECT_FALSE(changes.freeze);
  EXPECT_FALSE(changes.complaint.empty());
}

TEST_F(RankPortTest, ReportsALateCaptureNoLaterThanTheAnswerToTheHalt) {
  grant(0, 0);
  capture(43);
  control_->freeze({7, 4, 43});
  const auto changes = port_->look(segments_);
  EXPECT_TRUE(changes.captured);
  EXPECT_TRUE(changes.freeze);
}

TEST_F(RankPortTest, FindsPiecesThatATrainerSealedInGrantedSlots) {
  grant(2, 1);
  capture(5);
  port_->look(segments_);
  EXPECT_TRUE(port_->left_behind(segments_).empty()) << "it has no unused grant";
  grant(0, 2);
  EXPECT_TRUE(port_->left_behind(segments_).empty()) << "these slots are empty";
  write_piece(segments_.find({0, "rank0.private"})->writable_slot(2), make_piece("rank0.private", {1, 6}, 100));
  const auto left = port_->left_behind(segments_);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].first, (core::SlotRef{0, "rank0.private", 2}));
  EXPECT_EQ(left[0].second.checkpoint, CheckpointId(1, 6));
}

TEST_F(RankPortTest, IgnoresOldPiecesInGrantedSlotsOfADeadTrainer) {
  grant(2, 1);
  capture(5);
  port_->look(segments_);
  grant(0, 2);
  for (const CheckpointId other : {CheckpointId(1, 5), CheckpointId(1, 4), CheckpointId(2, 6)}) {
    write_piece(segments_.find({0, "rank0.private"})->writable_slot(2), make_piece("rank0.private", other, 100));
    EXPECT_TRUE(port_->left_behind(segments_).empty()) << other.incarnation() << '.' << other.iteration();
  }
}

TEST_F(RankPortTest, CommitResumeAndFenceReachTheTrainer) {
  port_->commit({1, 4});
  port_->resume_at(9);
  EXPECT_EQ(control_->committed(), CheckpointId(1, 4));
  EXPECT_EQ(control_->resume_at(), 9);
  EXPECT_EQ(control_->fenced(), 0u);
  port_->fence(0);
  EXPECT_NE(control_->fenced(), 0u) << "a refusal without a newer incarnation stops the trainer, too";
}

TEST_F(RankPortTest, FindsOwnStateSealedByATrainerThatNeverCameBack) {
  grant(0, 1);
  const OpenGrant granted = *port_->outstanding();
  port_.reset();
  // An older piece is still in the slot of the main shard.
  write_piece(segments_.find({0, "rank0"})->writable_slot(0), make_piece("rank0", {1, 4}, 10'000));
  control_->capturing({1, 5});
  control_->attempted(5);
  EXPECT_TRUE(left_by_orphan(arena_.directory(), 0, granted, segments_).empty());
  write_piece(segments_.find({0, "rank0.private"})->writable_slot(1), make_piece("rank0.private", {1, 5}, 100));
  const auto left = left_by_orphan(arena_.directory(), 0, granted, segments_);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].first, (core::SlotRef{0, "rank0.private", 1}));
  EXPECT_EQ(left[0].second.checkpoint, CheckpointId(1, 5));
}

TEST_F(RankPortTest, CaptureIntoTheSpareSlotLeavesTheOtherSlotToTheTrainer) {
  port_->grant({}, {{0, "rank0", 2}, {0, "rank0.private", 1}}, core::SlotRef{0, "rank0.private", 0});
  EXPECT_EQ(control_->grant().spare, 0);
  control_->capturing({1, 5});
  control_->attempted(5);
  fill(2, 0, {1, 5});
  control_->used_grant(control_->grant().sequence, true);
  control_->capturing({});
  const auto changes = port_->look(segments_);
  ASSERT_TRUE(changes.captured);
  EXPECT_TRUE(changes.captured->in_spare);
  EXPECT_EQ(changes.pieces[1].first, (core::SlotRef{0, "rank0.private", 0}));
  EXPECT_TRUE(port_->left_behind(segments_).empty());
  // Before the next update it keeps its own state in the slot that is left to it, and dies.
  write_piece(segments_.find({0, "rank0.private"})->writable_slot(1), make_piece("rank0.private", {1, 6}, 100));
  const auto left = port_->left_behind(segments_);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].first, (core::SlotRef{0, "rank0.private", 1}));
  EXPECT_EQ(left[0].second.checkpoint, CheckpointId(1, 6));
}

TEST_F(RankPortTest, FindsOwnStateOfTwoIterationsLeftByATrainer) {
  port_->grant({}, {{0, "rank0", 2}, {0, "rank0.private", 1}}, core::SlotRef{0, "rank0.private", 0});
  control_->capturing({1, 5});
  control_->attempted(5);
  write_piece(segments_.find({0, "rank0.private"})->writable_slot(1), make_piece("rank0.private", {1, 5}, 100));
  write_piece(segments_.find({0, "rank0.private"})->writable_slot(0), make_piece("rank0.private", {1, 6}, 100));
  EXPECT_EQ(port_->left_behind(segments_).size(), 2u);
  const OpenGrant granted = *port_->outstanding();
  port_.reset();
  EXPECT_EQ(left_by_orphan(arena_.directory(), 0, granted, segments_).size(), 2u);
  // Of two pieces in a trainer's slots, the one from before its last iteration is of no use.
  control_->attempted(6);
  control_->capturing({1, 6});
  const auto left = left_by_orphan(arena_.directory(), 0, granted, segments_);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].second.checkpoint, CheckpointId(1, 6));
}

TEST_F(RankPortTest, RestartedAgentKeepsTheSlotLeftToATrainer) {
  port_->grant({}, {{0, "rank0", 2}, {0, "rank0.private", 1}}, core::SlotRef{0, "rank0.private", 0});
  control_->capturing({1, 5});
  control_->attempted(5);
  fill(2, 1, {1, 5});
  control_->used_grant(control_->grant().sequence);
  control_->capturing({});
  ASSERT_TRUE(port_->look(segments_).captured);
  write_piece(segments_.find({0, "rank0.private"})->writable_slot(0), make_piece("rank0.private", {1, 6}, 100));
  const OpenGrant left{control_->grant().sequence, {}, core::SlotRef{0, "rank0.private", 0}};
  ASSERT_EQ(left_by_orphan(arena_.directory(), 0, left, segments_).size(), 1u);
  open(left);
  EXPECT_FALSE(port_->outstanding());
  ASSERT_EQ(port_->left_behind(segments_).size(), 1u);
  EXPECT_EQ(port_->left_behind(segments_)[0].second.checkpoint, CheckpointId(1, 6));
}

TEST_F(RankPortTest, ARestartedAgentFindsWhichSlotsALivingTrainerStillHas) {
  Claims claims(arena_.directory());
  Claimant claimant{0, hello_.instance, 0, hello_.main_shard, hello_.private_shard, Process::open(::getpid())};
  ASSERT_EQ(claims.claim(claimant).verdict, Claims::Verdict::admitted);
  const auto found = [&] { return find_open_grants(arena_.directory(), silent_log()); };
  const core::SlotRef main{0, "rank0", 2}, own{0, "rank0.private", 1}, spare{0, "rank0.private", 0};

  port_->grant({}, {main, own}, spare);
  ASSERT_TRUE(found().contains(0));
  EXPECT_EQ(found().at(0).slots, (std::vector{main, own}));
  EXPECT_EQ(found().at(0).spare, spare);
  control_->used_grant(control_->grant().sequence, true);
  ASSERT_TRUE(found().contains(0)) << "one slot is left to it for its own state";
  EXPECT_TRUE(found().at(0).slots.empty());
  EXPECT_EQ(found().at(0).spare, own);

  port_->grant({}, {main, own}, spare);
  control_->used_grant(control_->grant().sequence);
  EXPECT_EQ(found().at(0).spare, spare);

  port_->grant({}, {main, own});
  EXPECT_EQ(found().at(0).slots.size(), 2u);
  control_->used_grant(control_->grant().sequence);
  EXPECT_FALSE(found().contains(0));
}

TEST_F(RankPortTest, FindsTheCompleteCaptureOfATrainerThatNeverCameBack) {
  grant(0, 1);
  const OpenGrant granted = *port_->outstanding();
  port_.reset();
  capture(5);
  EXPECT_EQ(left_by_orphan(arena_.directory(), 0, granted, segments_).size(), 2u);
}

}  // namespace
}  // namespace ckpt::agent
