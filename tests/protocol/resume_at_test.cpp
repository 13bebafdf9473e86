// Which iteration is taken next outlives the leader that named it.
#include <gtest/gtest.h>

#include "cluster.hpp"

namespace ckpt::protocol {
namespace {

constexpr Rank ranks = 4;

// A leader has named an iteration further ahead than one follows from what the others report, and has told only some
// of them when it is cut off.
class NamedIteration {
 public:
  NamedIteration() {
    cluster.start_life(own_node);
    cluster.begin_training();
    for (std::int64_t iteration : {4, 5, 7}) miss(iteration);
  }
  // Whoever's bit is set hears of it.
  void name_and_tell(std::uint32_t which) {
    const NodeId leader = *cluster.root();
    cluster.arrives = [=](NodeId, const Send& send) {
      const bool is_told = (which >> send.to & 1) != 0;
      return send.to == leader || is_told || !std::holds_alternative<Directive>(send.message);
    };
    miss(10);
    cluster.change_root();
    cluster.arrives = [](NodeId, const Send&) { return true; };
    cluster.advance(5000);
  }
  Cluster cluster{ranks, ranks};

 private:
  // The last rank cannot take it.
  void miss(std::int64_t iteration) {
    cluster.feed(ranks - 1, Progress{ranks - 1, iteration, -1});
    for (Rank rank = 0; rank + 1 < ranks; ++rank) cluster.snapshot(rank, iteration);
  }
};

TEST(ResumeAt, IsTheSameForAllRanksWhicheverOfThemTheFormerLeaderTold) {
  for (std::uint32_t which = 0; which < 1u << ranks; ++which) {
    NamedIteration job;
    ASSERT_EQ(job.cluster.resume_at.at(0), 10);
    job.name_and_tell(which);
    const std::int64_t named = job.cluster.resume_at.at(0);
    EXPECT_GE(named, 15) << "it was told the former leader's own rank at least";
    for (Rank rank = 0; rank < ranks; ++rank) EXPECT_EQ(job.cluster.resume_at.at(rank), named) << rank << " " << which;
    job.cluster.snapshot_all(named);
    job.cluster.advance(500);
    for (Rank rank = 0; rank < ranks; ++rank) EXPECT_EQ(job.cluster.commits[rank], Version(1, named)) << which;
  }
}

}  // namespace
}  // namespace ckpt::protocol
