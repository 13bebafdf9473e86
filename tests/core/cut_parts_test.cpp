// A shard that is cut is there when all parts of one way to cut it are, or all of it in one: every set of what may be
// left is tried.
#include <gtest/gtest.h>

#include "cluster.hpp"
#include "core/leader/restore_decision.hpp"

namespace ckpt::core {
namespace {

// All of it, its two halves and its three thirds.
std::vector<std::string> pieces_of_model() {
  std::vector<std::string> names;
  for (const std::uint32_t of : {1u, 2u, 3u})
    for (const std::string& part : parts_of("model", of)) names.push_back(part);
  return names;
}

TEST(CutShards, AreRestoredOnlyFromAllPartsOfOneDivision) {
  const auto names = pieces_of_model();
  ASSERT_EQ(names.size(), 6u);
  const CheckpointId older(1, 3), newer(1, 4);
  for (std::uint32_t left = 0; left < 1u << names.size(); ++left) {
    Report report;
    report.pieces.push_back(piece_of("model", older, 1));
    for (std::size_t i = 0; i < names.size(); ++i)
      if ((left >> i & 1) != 0) report.pieces.push_back(piece_of(names[i], newer, 1));
    RecoveryQuestion question;
    question.reports = {&report};
    question.shards = {"model"};
    question.world_size = 1;
    const Decision decision = plan_recovery(question).decision;
    const bool in_one = (left & 0b1) != 0, in_two = (left & 0b110) == 0b110, in_three = (left & 0b111000) == 0b111000;
    EXPECT_EQ(decision.checkpoint, in_one || in_two || in_three ? newer : older) << left;
    const std::uint32_t of = decision.cuts.empty() ? 1 : decision.cuts[0].of;
    if (decision.checkpoint == newer) {
      EXPECT_TRUE(of == 1 ? in_one : of == 2 ? in_two : in_three) << left;
    }
  }
}

}  // namespace
}  // namespace ckpt::core
