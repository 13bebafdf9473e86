#include "base/check.hpp"

#include <gtest/gtest.h>

namespace ckpt {
namespace {

TEST(Check, BrokenInvariantThrowsAFailureThatNamesIt) {
  EXPECT_NO_THROW(check(true, "water is dry"));
  try {
    check(false, "water is dry");
    FAIL() << "nothing was thrown";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.status(), CKPT_ERR_INTERNAL);
    EXPECT_STREQ(failure.what(), "water is dry: this is a bug in ckptengine; report it with the agent's log");
  }
}

}  // namespace
}  // namespace ckpt
