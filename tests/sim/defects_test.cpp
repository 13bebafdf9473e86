// Trainers that do something wrong on purpose. The simulator's checks must notice.
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "sim/world.hpp"

namespace ckpt::sim {
namespace {

constexpr std::uint64_t seeds = 400;

// The invariant that the first run violates of those in which a suspicion halts the job, and ranks rejoin if they
// `rejoin`. "" if there is none.
std::string noticed(Settings::Defect defect, bool rejoin) {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    Settings settings = draw_settings(seed);
    if (!settings.can_halt() || settings.can_rejoin() != rejoin) continue;
    settings.defect = defect;
    if (const auto violation = World(settings, nullptr).run().violation) return violation->invariant;
  }
  return "";
}

TEST(Defects, NoticesAnUpdateInAHaltedJob) {
  EXPECT_EQ(noticed(Settings::Defect::updates_in_a_halt, false), "I10");
  EXPECT_EQ(noticed(Settings::Defect::updates_in_a_halt, true), "I10");
}

TEST(Defects, NoticesTensorsThatChangeBeforeARejoin) {
  EXPECT_EQ(noticed(Settings::Defect::keeps_changed_tensors, true), "I10");
}

}  // namespace
}  // namespace ckpt::sim
