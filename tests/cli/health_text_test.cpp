// Which of several agents' verdicts counts, how it reads, and with what a script is told.
#include "cli/health_text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckpt::cli {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

json verdict_of(const std::string& job, const std::string& state, const std::string& node,
                const std::string& leader = "n0") {
  return {{"job", job},
          {"state", state},
          {"reported_by", node},
          {"leader", leader},
          {"text", state == "protected" ? "" : "node n7 does not answer"},
          {"at_risk_ms", 1200},
          {"committed", {{"incarnation", 2}, {"iteration", 40}}}};
}

std::vector<std::string> reported_by(const std::vector<json>& verdicts) {
  std::vector<std::string> nodes;
  for (const json& verdict : verdicts) nodes.push_back(verdict.at("reported_by"));
  return nodes;
}

TEST(Verdicts, ChoosesTheWorstVerdictOfAJobInAnyOrder) {
  const json good = verdict_of("j", "protected", "n1"), bad = verdict_of("j", "not protected", "n2"),
             fair = verdict_of("j", "degraded", "n3");
  for (const auto& verdicts :
       {std::vector{good, bad, fair}, std::vector{bad, fair, good}, std::vector{fair, good, bad}})
    EXPECT_THAT(reported_by(worst_of_each_job(verdicts)), ElementsAre("n2"));
}

TEST(Verdicts, PrefersTheLeadersAmongEqualVerdicts) {
  const json other = verdict_of("j", "degraded", "n1"), leaders = verdict_of("j", "degraded", "n0");
  EXPECT_THAT(reported_by(worst_of_each_job({other, leaders})), ElementsAre("n0"));
  EXPECT_THAT(reported_by(worst_of_each_job({leaders, other})), ElementsAre("n0"));
}

TEST(Verdicts, ListsOneVerdictPerJobWorstFirst) {
  const auto worst = worst_of_each_job(
      {verdict_of("a", "protected", "n1"), verdict_of("b", "not protected", "n2"), verdict_of("c", "degraded", "n3")});
  EXPECT_THAT(reported_by(worst), ElementsAre("n2", "n3", "n1"));
}

TEST(Verdicts, ExitStatusIsThatOfTheWorstJob) {
  const json good = verdict_of("a", "protected", "n1"), fair = verdict_of("b", "degraded", "n2"),
             bad = verdict_of("c", "not protected", "n3");
  EXPECT_EQ(exit_status_of({good}), 0);
  EXPECT_EQ(exit_status_of({good, fair}), 1);
  EXPECT_EQ(exit_status_of({fair, bad, good}), 2);
}

// What is not known to be protected is not.
TEST(Verdicts, TreatsMissingAndUnknownVerdictsAsNotProtected) {
  EXPECT_EQ(exit_status_of({}), 2);
  EXPECT_EQ(exit_status_of({json::object()}), 2);
  EXPECT_EQ(exit_status_of({verdict_of("j", "splendid", "n1")}), 2);
  EXPECT_EQ(exit_status_of({no_agent("j")}), 2);
  EXPECT_EQ(exit_status_of({silent_agent({"j", "n1", "/arena", {}}, "it is stopped")}), 2);
}

TEST(Verdicts, LinesBeginWithTheState) {
  EXPECT_EQ(headline(verdict_of("j", "protected", "n1")),
            "protected: job j committed iteration 40 of incarnation 2 1.2 s ago");
  EXPECT_EQ(headline(verdict_of("j", "degraded", "n1")), "degraded: job j: node n7 does not answer");
  EXPECT_THAT(headline(no_agent("j")), StartsWith("not protected: job j: no agent of job j answers"));
  EXPECT_THAT(headline(silent_agent({"j", "n1", "/arena", {}}, "it is stopped")), HasSubstr("it is stopped"));
}

}  // namespace
}  // namespace ckpt::cli
