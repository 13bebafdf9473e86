// A replacement may hold the last copies there are: a restore's decision waits for one that is absent as it waits for a
// member.
#include <gtest/gtest.h>

#include "cluster.hpp"

namespace ckpt::core {
namespace {

// Two nodes with a rank each, and a third one that stands by. Storage has iteration 10; iteration 12 is committed, and
// in memory alone.
class AbsentReplacement {
 public:
  // After it has taken node `lost`'s place the other member is lost as well, and both come back empty at once. The
  // replacement hesitates for so long from when the ranks ask, and was away for `before_ms` before that.
  AbsentReplacement(NodeId lost, TimeMs absent_ms, TimeMs before_ms = 0) {
    cluster.storage = Cluster::Storage{};
    cluster.storage_every = 10;
    cluster.standbys = {2};
    for (NodeId node = 0; node < 3; ++node) cluster.boot(node);
    cluster.advance(3000);
    cluster.start_incarnation(own_node);
    cluster.begin_training();
    for (std::int64_t iteration = 0; iteration <= 10; ++iteration) cluster.snapshot_all(iteration);
    cluster.storage->writing = false;
    for (std::int64_t iteration = 11; iteration <= 12; ++iteration) cluster.snapshot_all(iteration);
    cluster.lose(lost);
    cluster.advance(10'000);
    is_replacing =
        cluster.incarnation_record().replacements == std::vector<Replacement>{{lost, {2, replacement_arena()}}};
    if (before_ms == 0) cluster.lose(1 - lost);
    cluster.stop(2);
    cluster.advance(before_ms);
    if (before_ms != 0) cluster.lose(1 - lost);
    for (const NodeId node : {0u, 1u}) cluster.boot(node);
    cluster.ready.clear();
    cluster.start_incarnation(own_node);
    cluster.advance(absent_ms);
    was_decided_alone = !cluster.ready.empty();
    cluster.resume(2);
    cluster.advance(20'000);
  }

  Cluster cluster{0, 2};
  bool is_replacing = false;
  bool was_decided_alone = false;

 private:
  std::uint64_t replacement_arena() const {
    return cluster.incarnation_record().replacements.empty() ? 0
                                                             : cluster.incarnation_record().replacements[0].by.arena_id;
  }
};

TEST(AbsentReplacements, AreAwaitedForCommitsThatTheyMayHold) {
  for (const NodeId lost : {0u, 1u}) {
    for (TimeMs absent_ms = 0; absent_ms <= 4500; absent_ms += 500) {
      const AbsentReplacement job(lost, absent_ms);
      ASSERT_TRUE(job.is_replacing);
      EXPECT_FALSE(job.was_decided_alone) << absent_ms;
      ASSERT_EQ(job.cluster.ready.size(), 2u) << absent_ms;
      for (const auto& [rank, ready] : job.cluster.ready)
        EXPECT_EQ(ready.decision.checkpoint, CheckpointId(1, 12)) << absent_ms;
    }
  }
}

// The leader has missed it for long before the next incarnation begins, and nobody else was there to take its place.
TEST(AbsentReplacements, AreAwaitedEvenIfAbsentBeforeTheRestart) {
  for (const NodeId lost : {0u, 1u}) {
    const AbsentReplacement job(lost, 2000, 10'000);
    ASSERT_TRUE(job.is_replacing);
    EXPECT_FALSE(job.was_decided_alone);
    ASSERT_EQ(job.cluster.ready.size(), 2u);
    for (const auto& [rank, ready] : job.cluster.ready) EXPECT_EQ(ready.decision.checkpoint, CheckpointId(1, 12));
  }
}

// As for a member, and not for ever.
TEST(AbsentReplacements, AreNotAwaitedLongerThanMembers) {
  const AbsentReplacement job(1, 30'000);
  ASSERT_EQ(job.cluster.ready.size(), 2u);
  for (const auto& [rank, ready] : job.cluster.ready) {
    EXPECT_EQ(ready.decision.checkpoint, CheckpointId(1, 10));
    EXPECT_TRUE(ready.decision.status_unknown) << "nobody who is left can tell that nothing newer was committed";
  }
}

}  // namespace
}  // namespace ckpt::core
