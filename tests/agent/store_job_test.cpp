// Whole agents whose coordination store hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../coord/hanging_store.hpp"
#include "cluster.hpp"

namespace ckpt::agent {
namespace {

using testing::AgentCluster;
using testing::eventually;
using ::testing::HasSubstr;
using testing::on_all;
using testing::Trainer;

class StoreJobTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t timeout_ms = 200;

  ~StoreJobTest() override { store_->answer(); }
  void start(const std::string& node, const OptionPairs& more = {}) {
    cluster_.start(node, more, [this](AgentSetup& setup) {
      setup.store = std::make_unique<test::StoreHandle>(store_);
      setup.store_timeout_ms = timeout_ms;
    });
  }
  std::string trouble(const std::string& node) {
    return cluster_.status(node).at("coordination_trouble").get<std::string>();
  }
  bool commits(std::vector<std::unique_ptr<Trainer>>& trainers) {
    return eventually([&] {
      ++iteration_;
      for (auto& trainer : trainers)
        if (trainer->snapshot(iteration_) != CKPT_OK) return false;
      for (auto& trainer : trainers)
        if (trainer->wait_commit(iteration_) != CKPT_OK) return false;
      return true;
    });
  }

  AgentCluster cluster_{2};
  const std::shared_ptr<test::HangingStore> store_ = std::make_shared<test::HangingStore>();
  std::int64_t iteration_ = 0;
};

TEST_F(StoreJobTest, AgentsReportAHangingStoreContinueCommittingAndRecover) {
  for (const char* node : {"a", "b"}) start(node);
  std::vector<std::unique_ptr<Trainer>> trainers;
  trainers.push_back(std::make_unique<Trainer>(cluster_, "a", 0u));
  trainers.push_back(std::make_unique<Trainer>(cluster_, "b", 1u));
  on_all(trainers, [](Trainer& trainer) { return trainer.restore(); });
  EXPECT_TRUE(commits(trainers));
  store_->hang();
  for (const char* node : {"a", "b"})
    EXPECT_TRUE(eventually([&] { return trouble(node).find("has not answered") != std::string::npos; })) << node;
  EXPECT_TRUE(commits(trainers));
  store_->answer();
  for (const char* node : {"a", "b"}) EXPECT_TRUE(eventually([&] { return trouble(node).empty(); })) << node;
  EXPECT_TRUE(commits(trainers));
}

TEST_F(StoreJobTest, AnAgentEndsWhileTheStoreHangs) {
  start("a");
  store_->hang();
  EXPECT_TRUE(eventually([&] { return store_->hanging() > 0; }));
  EXPECT_EQ(cluster_.ask("a", {{"type", "stop"}}).at("status"), CKPT_OK);
  EXPECT_TRUE(cluster_.asked_to_stop("a"));
  cluster_.stop("a");
  EXPECT_GT(store_->hanging(), 0) << "it did not wait for the store";
}

TEST_F(StoreJobTest, AnAgentThatStartsWhileTheStoreHangsSaysSoAndEnds) {
  store_->hang();
  try {
    start("a");
    FAIL();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.status(), CKPT_ERR_TIMEOUT);
    EXPECT_THAT(failure.what(),
                HasSubstr("the coordination store " + cluster_.path() + "/coordination has not answered"));
  }
}

}  // namespace
}  // namespace ckpt::agent
