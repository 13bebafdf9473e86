#include "arena/health_board.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>

namespace ckpt::arena {
namespace {

struct HealthBoardTest : ::testing::Test {
  std::unique_ptr<HealthWords> words = std::make_unique<HealthWords>();
  HealthBoard board{*words};
};

HealthNews some_news() {
  HealthNews news;
  news.state = 1;
  news.rank = 7;
  news.lasts_ms = 12;
  news.at_risk_ms = 34;
  news.at_risk_iterations = 56;
  news.allowed_ms = 5000;
  news.committed = Version(3, 99);
  news.copies_now = 1;
  news.copies = 2;
  news.parity_now = 3;
  news.parity = 4;
  news.reason = "fewer_copies";
  news.node = "n5";
  news.text = "why";
  news.advice = "what to do";
  return news;
}

TEST_F(HealthBoardTest, NothingIsHeardBeforeAnythingWasTold) { EXPECT_FALSE(board.heard()); }

TEST_F(HealthBoardTest, WhatIsToldIsHeard) {
  board.tell(some_news());
  const auto heard = board.heard();
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->state, 1);
  EXPECT_EQ(heard->rank, 7u);
  EXPECT_EQ(heard->lasts_ms, 12);
  EXPECT_EQ(heard->at_risk_ms, 34);
  EXPECT_EQ(heard->at_risk_iterations, 56);
  EXPECT_EQ(heard->allowed_ms, 5000);
  EXPECT_EQ(heard->committed, Version(3, 99));
  EXPECT_EQ(heard->copies_now, 1u);
  EXPECT_EQ(heard->parity, 4u);
  EXPECT_EQ(heard->reason, "fewer_copies");
  EXPECT_EQ(heard->node, "n5");
  EXPECT_EQ(heard->text, "why");
  EXPECT_EQ(heard->advice, "what to do");
}

TEST_F(HealthBoardTest, BeatsCount) {
  const std::uint64_t before = board.beats();
  board.beat();
  EXPECT_EQ(board.beats(), before + 1);
}

TEST_F(HealthBoardTest, TextsOfAnyLengthFit) {
  HealthNews news = some_news();
  for (std::string* text : {&news.reason, &news.node, &news.text, &news.advice}) *text = std::string(100'000, 'x');
  board.tell(news);
  const auto heard = board.heard();
  ASSERT_TRUE(heard);
  EXPECT_FALSE(heard->advice.empty());
  EXPECT_LT(heard->text.size(), 1000u);
}

TEST_F(HealthBoardTest, WhateverIsInTheWordsIsWithinBounds) {
  std::memset(static_cast<void*>(words.get()), 0xff, sizeof *words);
  words->sequence.store(2);
  const auto heard = board.heard();
  ASSERT_TRUE(heard);
  EXPECT_LE(heard->state, 2);
  EXPECT_GE(heard->at_risk_ms, 0);
  EXPECT_LE(heard->reason.size(), sizeof words->words);
}

TEST_F(HealthBoardTest, WhatAWriterLeftHalfWrittenIsNotHeard) {
  board.tell(some_news());
  words->sequence.fetch_add(1);
  EXPECT_FALSE(board.heard());
  board.tell(some_news());
  EXPECT_TRUE(board.heard());
}

}  // namespace
}  // namespace ckpt::arena
