#include "client/health_watch.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "engine_fixture.hpp"

namespace ckpt::client {
namespace {

arena::HealthNews news_of(std::uint8_t state) {
  arena::HealthNews news;
  news.state = state;
  news.allowed_ms = 5000;
  news.committed = CheckpointId(1, 7);
  news.reason = state == 0 ? "none" : "rank_stopped";
  news.text = state == 0 ? "" : "the trainer of rank 1 is stopped";
  return news;
}

HealthFacts facts_of(std::uint8_t state) {
  HealthFacts facts;
  facts.is_connected = true;
  facts.node = "n3";
  facts.news = news_of(state);
  return facts;
}

TEST(HealthJudge, PassesOnTheAgentsVerdict) {
  for (std::uint8_t state = 0; state <= 2; ++state) {
    const ckpt_health_t health = judge(facts_of(state));
    EXPECT_EQ(health.state, static_cast<ckpt_protection>(state));
    EXPECT_EQ(health.committed_iteration, 7);
    EXPECT_EQ(std::string(health.text), news_of(state).text);
  }
}

TEST(HealthJudge, DistrustsAnAgentWithoutHeartbeats) {
  HealthFacts facts = facts_of(0);
  facts.silent_ms = 3000;
  EXPECT_EQ(judge(facts).state, CKPT_DEGRADED);
  facts.silent_ms = 6000;
  const ckpt_health_t health = judge(facts);
  EXPECT_EQ(health.state, CKPT_NOT_PROTECTED);
  EXPECT_STREQ(health.reason, "agent_silent");
  EXPECT_STREQ(health.node, "n3");
  facts.heartbeat_ms = 10'000;
  EXPECT_EQ(judge(facts).state, CKPT_PROTECTED) << "that agent beats seldom";
}

TEST(HealthJudge, ForgetsASuspicionWhenTheAgentIsSilent) {
  HealthFacts facts = facts_of(0);
  facts.news->suspicion = "rank 1 is stopped";
  EXPECT_STREQ(judge(facts).suspicion, "rank 1 is stopped");
  facts.silent_ms = 3000;
  EXPECT_STREQ(judge(facts).suspicion, "");
  facts.silent_ms = 0;
  facts.is_connected = false;
  EXPECT_STREQ(judge(facts).suspicion, "");
}

TEST(HealthJudge, ReportsNotProtectedWithoutAnAgentWhenCommitsAreDue) {
  HealthFacts facts = facts_of(0);
  facts.is_connected = false;
  facts.why_disconnected = "it ended";
  EXPECT_EQ(judge(facts).state, CKPT_DEGRADED);
  facts.quiet_ms = 5001;
  EXPECT_EQ(judge(facts).state, CKPT_NOT_PROTECTED);
  EXPECT_STREQ(judge(facts).reason, "agent_gone");
  EXPECT_NE(std::string(judge(facts).text).find("it ended"), std::string::npos);
}

TEST(HealthJudge, DistrustsProtectedWhileNoCommitArrives) {
  HealthFacts facts = facts_of(0);
  facts.quiet_ms = 7000;
  EXPECT_EQ(judge(facts).state, CKPT_NOT_PROTECTED);
  EXPECT_STREQ(judge(facts).reason, "stalled");
}

TEST(HealthJudge, ReportsNotProtectedInAnEarlierIncarnation) {
  HealthFacts facts = facts_of(0);
  facts.is_superseded = true;
  EXPECT_EQ(judge(facts).state, CKPT_NOT_PROTECTED);
  EXPECT_STREQ(judge(facts).reason, "superseded");
}

TEST(HealthJudge, ReportsDegradedBeforeTheFirstVerdict) {
  HealthFacts facts = facts_of(0);
  facts.news.reset();
  EXPECT_EQ(judge(facts).state, CKPT_DEGRADED);
  EXPECT_EQ(judge(facts).committed_iteration, -1);
  EXPECT_EQ(judge(facts).allowed_ms, 5000);
}

TEST(HealthJudge, CutsLongTexts) {
  HealthFacts facts = facts_of(2);
  facts.news->text = std::string(10'000, 'x');
  facts.news->reason = std::string(10'000, 'y');
  const ckpt_health_t health = judge(facts);
  EXPECT_EQ(std::string(health.text).size(), sizeof health.text - 1);
  EXPECT_EQ(std::string(health.reason).size(), sizeof health.reason - 1);
}

// A watch over a control page, in place of an agent.
struct WatchTest : ::testing::Test {
  WatchTest() { heartbeat(0); }

  void heartbeat(std::uint8_t state, std::int64_t allowed_ms = 10'000'000) {
    arena::HealthNews news = news_of(state);
    news.allowed_ms = allowed_ms;
    news.committed = CheckpointId(1, ++iteration);
    control->health().publish(news);
    control->health().heartbeat();
  }
  // Until the watch has looked at it, has called whom it wants to call, and has looked again.
  void await_calls_for(std::uint8_t state) {
    for ([[maybe_unused]] const int look : {0, 1}) {
      heartbeat(state);
      await([&] { return watch.now().committed_iteration == iteration; });
    }
  }
  void await(const std::function<bool()>& what) {
    for (const Deadline deadline = Deadline::in_ms(30'000); !what();) {
      ASSERT_FALSE(deadline.passed());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  static void receive(const ckpt_health_t* health, void* user) {
    auto* self = static_cast<WatchTest*>(user);
    const std::lock_guard lock(self->mutex);
    self->read.push_back(*health);
  }
  std::size_t received_count() {
    const std::lock_guard lock(mutex);
    return read.size();
  }

  bool has_listing(ckpt_protection state) {
    const std::lock_guard lock(mutex);
    return !read.empty() && read.back().state == state;
  }

  std::int64_t iteration = 0;
  std::mutex mutex;
  std::vector<ckpt_health_t> read;
  test::TemporaryDirectory arena{test::in_memory};
  std::shared_ptr<arena::Control> control = std::make_shared<arena::Control>(arena::Control::create(arena.path(), 0));
  HealthWatch::Source source{[this] { return control; }, [] { return true; }, [] { return ""; }};
  HealthWatch watch{{5000, 60'000, "n3"}, source};
};

TEST_F(WatchTest, CallsBackWhenTheVerdictChanges) {
  watch.on_change(&receive, this);
  heartbeat(2);
  await([&] { return received_count() == 1; });
  EXPECT_EQ(read[0].state, CKPT_NOT_PROTECTED);
  EXPECT_STREQ(read[0].text, "the trainer of rank 1 is stopped");
  EXPECT_EQ(watch.now().state, CKPT_NOT_PROTECTED);
  heartbeat(0);
  await([&] { return received_count() == 2; });
  EXPECT_EQ(read[1].state, CKPT_PROTECTED);
}

TEST_F(WatchTest, ReportsRecoveryImmediately) {
  watch.on_change(&receive, this);
  await_calls_for(2);
  await_calls_for(0);
  EXPECT_EQ(received_count(), 2u);
}

TEST_F(WatchTest, ReportsEachSuspicionAndItsEndImmediately) {
  watch.on_change(&receive, this);
  for (const std::string suspicion : {"rank 1 is stopped", "rank 1 has ended", ""}) {
    arena::HealthNews news = news_of(0);
    news.suspicion = suspicion;
    const std::size_t before = received_count();
    control->health().publish(news);
    await([&] { return received_count() > before; });
    EXPECT_EQ(read.back().suspicion, suspicion);
    EXPECT_EQ(read.back().state, CKPT_PROTECTED);
  }
}

TEST_F(WatchTest, NotifiesANewCallbackOfTheCurrentVerdict) {
  heartbeat(2);
  await([&] { return watch.now().state == CKPT_NOT_PROTECTED; });
  watch.on_change(&receive, this);
  await([&] { return received_count() == 1; });
  watch.on_change(&receive, this);  // somebody else, as far as the watch can tell
  await([&] { return received_count() == 2; });
}

TEST_F(WatchTest, CallsNoCallbackAfterItsRemoval) {
  watch.on_change(&receive, this);
  watch.on_change(nullptr, nullptr);
  await_calls_for(2);
  EXPECT_EQ(watch.now().state, CKPT_NOT_PROTECTED);
  EXPECT_EQ(received_count(), 0u);
}

TEST_F(WatchTest, TrustsAnAgentAgainAfterItsHeartbeatsResume) {
  const HealthWatch impatient({5000, 1, "n3"}, source);
  await([&] { return std::string(impatient.now().reason) == "agent_silent"; });
  await([&] {
    heartbeat(0);
    return impatient.now().state == CKPT_PROTECTED;
  });
}

TEST_F(WatchTest, CommitRestoresTheProtectedVerdict) {
  watch.on_change(&receive, this);
  heartbeat(0, 1);
  await([&] { return has_listing(CKPT_NOT_PROTECTED); });
  control->committed(CheckpointId(1, 8));
  await([&] { return has_listing(CKPT_PROTECTED); });
}

TEST_F(WatchTest, FencedTrainerLearnsThatItsIncarnationIsOver) {
  control->fence(2);
  await([&] { return std::string(watch.now().reason) == "superseded"; });
  EXPECT_EQ(watch.now().state, CKPT_NOT_PROTECTED);
}

}  // namespace
}  // namespace ckpt::client
