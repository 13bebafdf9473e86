// Calls into stores that never return.
#include "coord/bounded_store.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "hanging_store.hpp"
#include "support.hpp"

namespace ckpt::coord {
namespace {

using test::failure_of;
using testing::HasSubstr;

class BoundedStoreTest : public testing::Test {
 protected:
  ~BoundedStoreTest() override { inner_->answer(); }
  std::string refusal() {
    return failure_of([&] { store_->get("key"); });
  }
  const std::shared_ptr<test::HangingStore> inner_ = std::make_shared<test::HangingStore>();
  std::optional<BoundedStore> store_{std::in_place, inner_, "/the/mount", 50};
};

TEST_F(BoundedStoreTest, PassesCallsAndFailuresThrough) {
  EXPECT_EQ(store_->put_if("a/b", "value", 0), 1u);
  EXPECT_EQ(store_->put_if("a/b", "value", 0), std::nullopt);
  EXPECT_EQ(store_->get("a/b"), (Entry{"a/b", "value", 1}));
  EXPECT_EQ(store_->list("a/").size(), 1u);
  EXPECT_EQ(store_->keys("a/"), std::vector<std::string>{"a/b"});
  store_->remove("a/b");
  EXPECT_EQ(store_->get("a/b"), std::nullopt);
  EXPECT_THAT(failure_of([&] { store_->get("../key"); }), HasSubstr("cannot name a coordination record"));
}

TEST_F(BoundedStoreTest, EndsACallThatHangsAtItsDeadlineAndNamesTheStore) {
  inner_->hang();
  ckpt_status status = CKPT_OK;
  EXPECT_THAT(failure_of([&] { store_->get("key"); }, &status), HasSubstr("/the/mount has not answered"));
  EXPECT_EQ(status, CKPT_ERR_TIMEOUT);
}

TEST_F(BoundedStoreTest, LeavesFewHangingThreadsAndContinuesOnceTheStoreAnswers) {
  ASSERT_TRUE(store_->put_if("key", "value", 0));
  inner_->hang();
  for (int i = 0; i < 20; ++i) EXPECT_THAT(refusal(), HasSubstr("has not answered"));
  EXPECT_LE(inner_->hanging(), 4);
  inner_->answer();
  while (refusal() != "no failure") std::this_thread::yield();
  EXPECT_EQ(store_->get("key")->value, "value");
}

TEST_F(BoundedStoreTest, ReturnedThreadsNoLongerCountAsHanging) {
  inner_->hang();
  for (int i = 0; i < 20; ++i) EXPECT_THAT(refusal(), HasSubstr("has not answered"));
  inner_->answer();
  while (inner_->hanging() > 0 || refusal() != "no failure") std::this_thread::yield();
  inner_->hang();
  for (int i = 0; i < 3; ++i) EXPECT_THAT(refusal(), HasSubstr("has not answered"));
  EXPECT_GE(inner_->hanging(), 2) << "more than one call has tried by itself";
}

// As in a mount that was replaced: what hangs there hangs for good.
TEST_F(BoundedStoreTest, ContinuesAlthoughThreadsHangForever) {
  inner_->hang();
  for (int i = 0; i < 20; ++i) EXPECT_THAT(refusal(), HasSubstr("has not answered"));
  inner_->answer_others();
  while (refusal() != "no failure") std::this_thread::yield();
  EXPECT_EQ(inner_->hanging(), 4);
}

// A hanging thread must not block a store that answers other calls, as after a mount was replaced.
TEST_F(BoundedStoreTest, DoesNotWaitForAThreadThatStillHangs) {
  inner_->hang();
  EXPECT_THAT(refusal(), HasSubstr("has not answered"));
  EXPECT_THAT(refusal(), HasSubstr("has not answered"));
  EXPECT_EQ(inner_->hanging(), 2) << "each call has tried by itself";
}

TEST_F(BoundedStoreTest, GivingUpEndsAllCallsImmediately) {
  store_.emplace(inner_, "/the/mount", 3'600'000);
  inner_->hang();
  std::string sentence;
  {
    std::jthread caller([&] { sentence = refusal(); });
    while (inner_->hanging() == 0) std::this_thread::yield();
    store_->give_up();
  }
  EXPECT_THAT(sentence, HasSubstr("this agent is ending"));
  EXPECT_THAT(refusal(), HasSubstr("this agent is ending"));
}

TEST_F(BoundedStoreTest, CanBeDestroyedWhileACallHangs) {
  inner_->hang();
  EXPECT_THAT(refusal(), HasSubstr("has not answered"));
  store_.reset();
  inner_->answer();
  while (inner_->hanging() > 0) std::this_thread::yield();
}

TEST(Within, EndsAtItsDeadlineAndReturnsResultsAndFailures) {
  EXPECT_EQ(within(60'000, "store", [] { return 7; }), 7);
  EXPECT_EQ(failure_of([] { within(60'000, "store", []() -> int { throw Failure(CKPT_ERR_INVALID, "wrong"); }); }),
            "wrong");
  const auto store = std::make_shared<test::HangingStore>();
  store->hang();
  EXPECT_THAT(failure_of([&] { within(20, "/the/mount", [store] { return store->get("key"); }); }),
              HasSubstr("/the/mount has not answered"));
  store->answer();
}

}  // namespace
}  // namespace ckpt::coord
