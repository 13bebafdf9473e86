// Nothing new is committed while the record names a replacement: the member has not what the replacement has, and would
// bear witness that there was nothing.
#include <gtest/gtest.h>

#include "cluster.hpp"

namespace ckpt::core {
namespace {

// Each member but the leader is cut off until it is replaced, and comes back while the store is slow to say so.
TEST(CommitsWithAReplacement, WaitUntilTheReturnedMemberHasItsPlaceAgain) {
  for (NodeId away = 0; away < 4; ++away) {
    Cluster cluster(4, 4);
    cluster.standbys = {4};
    cluster.boot(4);
    cluster.start_incarnation(own_node);
    cluster.begin_training();
    cluster.snapshot_all(7);
    if (away == *cluster.current_leader()) continue;
    cluster.fetching = false;
    cluster.snapshot_all(8);
    for (NodeId node = 0; node < 5; ++node) {
      cluster.cut.insert({node, away});
      cluster.cut.insert({away, node});
    }
    cluster.advance(4000);
    cluster.release_fetches();
    cluster.advance(4000);
    ASSERT_FALSE(cluster.incarnation_record().replacements.empty());
    cluster.swapping = false;
    cluster.cut.clear();
    for (int i = 0; i < 60; ++i) {
      cluster.advance(50);
      ASSERT_EQ(cluster.status(*cluster.current_leader()).committed, CheckpointId(1, 7))
          << "in the place of node " << away;
    }
    ASSERT_FALSE(cluster.incarnation_record().replacements.empty());
    cluster.release_swaps();
    cluster.advance(3000);
    EXPECT_TRUE(cluster.incarnation_record().replacements.empty());
    EXPECT_EQ(cluster.status(*cluster.current_leader()).committed, CheckpointId(1, 8));
    EXPECT_NE(cluster.find_slot(away, piece_of(main_shard(away), CheckpointId(1, 8), 4)), nullptr);
  }
}

}  // namespace
}  // namespace ckpt::core
