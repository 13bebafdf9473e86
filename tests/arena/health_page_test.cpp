#include "arena/health_page.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>

namespace ckpt::arena {
namespace {

struct HealthPageTest : ::testing::Test {
  std::unique_ptr<HealthWords> words = std::make_unique<HealthWords>();
  HealthPage page{*words};
};

HealthNews some_news() {
  HealthNews news;
  news.state = 1;
  news.rank = 7;
  news.lasts_ms = 12;
  news.at_risk_ms = 34;
  news.at_risk_iterations = 56;
  news.allowed_ms = 5000;
  news.committed = CheckpointId(3, 99);
  news.copies_now = 1;
  news.copies = 2;
  news.parity_now = 3;
  news.parity = 4;
  news.reason = "fewer_copies";
  news.node = "n5";
  news.text = "why";
  news.advice = "what to do";
  news.suspicion = "who is to blame";
  return news;
}

TEST_F(HealthPageTest, ReadsNothingBeforeTheFirstPublish) { EXPECT_FALSE(page.read()); }

TEST_F(HealthPageTest, ReadsWhatWasPublished) {
  page.publish(some_news());
  const auto read = page.read();
  ASSERT_TRUE(read);
  EXPECT_EQ(read->state, 1);
  EXPECT_EQ(read->rank, 7u);
  EXPECT_EQ(read->lasts_ms, 12);
  EXPECT_EQ(read->at_risk_ms, 34);
  EXPECT_EQ(read->at_risk_iterations, 56);
  EXPECT_EQ(read->allowed_ms, 5000);
  EXPECT_EQ(read->committed, CheckpointId(3, 99));
  EXPECT_EQ(read->copies_now, 1u);
  EXPECT_EQ(read->parity, 4u);
  EXPECT_EQ(read->reason, "fewer_copies");
  EXPECT_EQ(read->node, "n5");
  EXPECT_EQ(read->text, "why");
  EXPECT_EQ(read->advice, "what to do");
  EXPECT_EQ(read->suspicion, "who is to blame");
}

TEST_F(HealthPageTest, CountsHeartbeats) {
  const std::uint64_t before = page.heartbeats();
  page.heartbeat();
  EXPECT_EQ(page.heartbeats(), before + 1);
}

TEST_F(HealthPageTest, CutsTextsToFit) {
  HealthNews news = some_news();
  for (std::string* text : {&news.reason, &news.node, &news.text, &news.advice}) *text = std::string(100'000, 'x');
  page.publish(news);
  const auto read = page.read();
  ASSERT_TRUE(read);
  EXPECT_FALSE(read->advice.empty());
  EXPECT_LT(read->text.size(), 1000u);
}

TEST_F(HealthPageTest, ReadsArbitraryWordsWithinBounds) {
  std::memset(static_cast<void*>(words.get()), 0xff, sizeof *words);
  words->sequence.store(2);
  const auto read = page.read();
  ASSERT_TRUE(read);
  EXPECT_LE(read->state, 2);
  EXPECT_GE(read->at_risk_ms, 0);
  EXPECT_LE(read->reason.size(), sizeof words->words);
}

TEST_F(HealthPageTest, IgnoresAHalfWrittenUpdate) {
  page.publish(some_news());
  words->sequence.fetch_add(1);
  EXPECT_FALSE(page.read());
  page.publish(some_news());
  EXPECT_TRUE(page.read());
}

}  // namespace
}  // namespace ckpt::arena
