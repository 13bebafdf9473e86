#include "cli/plan/plan_command.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include "cli/plan/byte_count.hpp"
#include "cli/plan/plan_job.hpp"
#include "cli/plan/plan_plot.hpp"
#include "options/options.hpp"
#include "placement/odds/planner/setting.hpp"

namespace ckpt::cli {
namespace {

using testing::HasSubstr;

std::string refusal(const PlanOptions& options) {
  try {
    show_plan(options);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

PlanOptions with(const std::function<void(PlanOptions&)>& change) {
  PlanOptions options;
  change(options);
  return options;
}

TEST(PlanCommand, EveryStrategyHasEffectiveTimeWastedTimeAndOptions) {
  const auto json = show_plan({}).json;
  EXPECT_EQ(json.at("strategies").size(), planner::all_schemes().size());
  for (const auto& strategy : json.at("strategies")) {
    EXPECT_TRUE(strategy.contains("options"));
    EXPECT_NEAR(strategy.at("effective_time").get<double>() + strategy.at("wasted").at("all").get<double>(), 1, 1e-12);
    double parts = 0;
    for (const char* part : {"steady", "detection", "restart", "redone"})
      parts += strategy.at("wasted").at(part).get<double>();
    EXPECT_NEAR(parts, strategy.at("wasted").at("all").get<double>(), 1e-9) << strategy.at("name");
  }
}

TEST(PlanCommand, OptionsToSetAreOptionsWithValuesThatTheEngineAccepts) {
  for (const std::uint32_t replicas : {1u, 4u}) {
    const auto options = with([&](PlanOptions& to) { to.inputs.job.replicas = replicas; });
    const auto json = show_plan(options).json;
    for (const auto& strategy : json.at("strategies")) {
      OptionPairs pairs = {{"job", "a"}, {"rank", "0"}, {"world_size", "1"}};
      for (const auto& [key, value] : strategy.at("options").items()) pairs.emplace_back(key, value);
      EXPECT_NO_THROW(parse_options(Reader::engine, pairs, nullptr)) << strategy.dump();
      EXPECT_EQ(strategy.at("options").empty(), !strategy.at("available").get<bool>()) << strategy.at("name");
    }
  }
}

TEST(PlanCommand, NeverRecommendsUnimplementedStrategies) {
  const auto json = show_plan(with([](PlanOptions& to) { to.inputs.job.replicas = 8; })).json;
  double best = 0;
  for (const auto& strategy : json.at("strategies")) {
    if (strategy.at("name") != "jit" && strategy.at("name") != "auto") continue;
    EXPECT_EQ(strategy.at("obstacle"), "this version does less than this plan assumes");
    best = std::max(best, strategy.at("effective_time").get<double>());
  }
  EXPECT_GT(best, json.at("recommended").at("effective_time").get<double>());  // jit would win, and is not named
  EXPECT_TRUE(json.at("recommended").at("available").get<bool>());
}

TEST(PlanCommand, SaysThatRepeatedUpdatesAreOnlyForSomeOptimizers) {
  const auto json = show_plan(with([](PlanOptions&) {})).json;
  const auto& strategies = json.at("strategies");
  const auto found = std::find_if(strategies.begin(), strategies.end(),
                                  [](const auto& strategy) { return strategy.at("name") == "recompute"; });
  ASSERT_NE(found, strategies.end());
  EXPECT_EQ(found->at("obstacle"), "only for some optimizers (docs/mechanisms.md)");
  EXPECT_FALSE(found->at("available").get<bool>());
}

TEST(PlanCommand, ExplainsWhyAStrategyDoesNotFitTheCluster) {
  const auto json = show_plan(with([](PlanOptions& to) { to.inputs.job.replicas = 1; })).json;
  for (const auto& strategy : json.at("strategies")) {
    if (strategy.at("name") != "jit") continue;
    EXPECT_TRUE(strategy.at("effective_time").is_null());
    EXPECT_TRUE(strategy.at("wasted").is_null());
    EXPECT_EQ(strategy.at("obstacle"), "jit needs at least two replicas of the state, but replicas is 1");
  }
}

TEST(PlanCommand, AdvisesToNameFailureDomains) {
  const auto result = show_plan(with([](PlanOptions& to) {
    to.inputs.failures.domain_nodes = 16;
    to.inputs.failures.domain_share = 0.05;
    to.domains_unnamed = true;
  }));
  EXPECT_THAT(result.text, HasSubstr("set domain on every node"));
}

TEST(PlanCommand, ReachesNinetySevenPercentOnTenThousandGpusWithPublishedFailureRates) {
  for (const char* rates : {"llama3", "bytedance"}) {
    const auto json = show_plan(with([&](PlanOptions& to) { to.rates = rates; })).json;
    EXPECT_GE(json.at("recommended").at("effective_time").get<double>(), 0.97) << rates;
  }
}

TEST(PlanCommand, RefusesNumbersOutOfRangeWithOneSentenceThatNamesThem) {
  EXPECT_THAT(refusal(with([](PlanOptions& to) { to.gpu_mtbf_hours = -3; })), HasSubstr("mtbf must be from"));
  EXPECT_THAT(refusal(with([](PlanOptions& to) { to.gpu_mtbf_hours = std::nan(""); })), HasSubstr("not nan"));
  EXPECT_THAT(refusal(with([](PlanOptions& to) { to.gpu_mtbf_hours = std::numeric_limits<double>::infinity(); })),
              HasSubstr("mtbf must be from"));
  EXPECT_THAT(refusal(with([](PlanOptions& to) { to.inputs.cluster.gpus = 0; })), HasSubstr("gpus must be from 1"));
  EXPECT_THAT(refusal(with([](PlanOptions& to) { to.node_share = 1.5; })), HasSubstr("node-share"));
  EXPECT_THAT(refusal(with([](PlanOptions& to) { to.inputs.job.iteration_s = 0; })), HasSubstr("iteration"));
  EXPECT_THAT(refusal(with([](PlanOptions& to) { to.state = "much"; })), HasSubstr("state must be a number of bytes"));
  EXPECT_THAT(refusal(with([](PlanOptions& to) { to.state = "nan"; })), HasSubstr("state must be a number of bytes"));
  EXPECT_THAT(refusal(with([](PlanOptions& to) { to.state = "-5"; })), HasSubstr("state must be from"));
  EXPECT_THAT(refusal(with([](PlanOptions& to) { to.rates = "somebody"; })), HasSubstr("llama3"));
  EXPECT_THAT(refusal(with([](PlanOptions& to) { to.inputs.failures.domain_share = 0.1; })),
              HasSubstr("domain-share is given without domain-nodes"));
  EXPECT_THAT(refusal(with([](PlanOptions& to) { to.inputs.job.replicas = 5000; })), HasSubstr("5000 replicas"));
}

TEST(PlanCommand, RefusesAProtectionThatDoesNotFit) {
  EXPECT_EQ(refusal(with([](PlanOptions& to) {
              to.protection = "copies(3)";
              to.memory = "10GiB";
              to.inputs.job.replicas = 1;
            })),
            "copies(3) needs 33.9 GiB of memory on each node, but a node has only 10 GiB");
  EXPECT_EQ(refusal(with([](PlanOptions& to) {
              to.protection = "copies(3)";
              to.inputs.cluster.gpus = 8;
              to.inputs.job.replicas = 1;
            })),
            "copies(3) needs 3 nodes, but there are only 1");
  EXPECT_THAT(refusal(with([](PlanOptions& to) { to.protection = "xor(1)"; })), HasSubstr("not 'xor(1)'"));
}

TEST(PlanCommand, ReportsThatNoProtectionFits) {
  const auto result = show_plan(with([](PlanOptions& to) { to.memory = "0"; }));
  EXPECT_TRUE(result.json.at("recommended").is_null());
  EXPECT_THAT(result.text, HasSubstr("No protection that this version can set fits this cluster."));
}

TEST(PlanCommand, CountsAThirdSlotIfCommitsMayOutlastAnIteration) {
  // Each node sends 8 GB at 20 GB/s, while the network is idle: 40 % of an iteration.
  const auto options = [](double iteration_s) {
    return with([&](PlanOptions& to) {
      to.state = "1TB";
      to.inputs.cluster.gpus = 1000;
      to.inputs.job.replicas = 1;
      to.network = "20GB";
      to.inputs.job.idle_share = 0.4;
      to.inputs.job.iteration_s = iteration_s;
    });
  };
  const auto slots = [&](double iteration_s) {
    const auto json = show_plan(options(iteration_s)).json;
    for (const auto& strategy : json.at("strategies"))
      if (strategy.at("name") == "every iteration") return strategy.at("options").at("own_slots").get<std::string>();
    return std::string();
  };
  EXPECT_EQ(slots(10), "2");
  EXPECT_EQ(slots(1.2), "3");
}

// ---- A running job ----

nlohmann::json status_of_node(const std::string& node) {
  auto status = nlohmann::json::parse(R"--({"is_leader": true, "protection": "copies(2)", "storage": null,
    "nodes_present": ["a", "b", "c", "d"], "health": {"iteration_ms": 700},
    "ranks": [{"rank": 0, "main_shard": "rank0", "own_slots": {"count": 3, "bytes": 300}}],
    "segments": [{"kind": "local", "slot_capacity_bytes": 900, "slots": [{"bytes": 0}, {"bytes": 800}]},
                 {"kind": "local", "slot_capacity_bytes": 100, "slots": [{"bytes": 0}]},
                 {"kind": "held", "slot_capacity_bytes": 900, "slots": [{"bytes": 900}]}],
    "schedule": {"ranks": [{"state": "learned", "iteration_ms": 500, "idle_ms": 200}], "link": {"bytes_per_s": 1e9}},
    "arena": {"budget_bytes": 0, "bytes": 4000, "left_bytes": 6000}})--");
  status["node"] = node;
  return status;
}

JobFindings find(const JobReport& report, const std::string& given = "") {
  PlanOptions options;
  options.inputs.failures.gpu_mtbf_s = 1e8;
  return job_findings(report, options.inputs, [&](const char* name) { return given == name; });
}

TEST(PlanOfAJob, UsesValuesMeasuredByAgents) {
  const JobFindings found = find({"demo", {status_of_node("a")}});
  EXPECT_EQ(found.inputs.cluster.gpus, 4u);
  EXPECT_EQ(found.inputs.cluster.gpus_per_node, 1u);
  EXPECT_EQ(found.inputs.job.replicas, 1u);
  EXPECT_EQ(found.inputs.job.state_bytes, 4 * (800 + 100));
  EXPECT_EQ(found.inputs.job.iteration_s, 0.5);
  EXPECT_EQ(found.inputs.job.idle_share, 0.4);
  EXPECT_EQ(found.inputs.cluster.network_bytes_per_s, 1e9);
  EXPECT_EQ(found.inputs.cluster.memory_bytes_per_node, 10'000);
  EXPECT_THAT(found.assumed, testing::Contains("restart"));
}

TEST(PlanOfAJob, CountsTheLeadersNodesWithoutStandbys) {
  auto follower = status_of_node("b"), standby = status_of_node("d");
  follower["is_leader"] = false;
  follower["nodes_present"] = {"b"};
  standby["is_leader"] = false;
  standby["ranks"] = nlohmann::json::array();
  EXPECT_EQ(find({"demo", {follower, status_of_node("a"), standby}}).inputs.cluster.gpus, 3u);
  // Without the leader's agent, those that have registered.
  follower["nodes"] = {"a", "b", "c", "d", "e"};
  EXPECT_EQ(find({"demo", {follower}}).inputs.cluster.gpus, 5u);
}

TEST(PlanOfAJob, HasOneCopyIfTheJobHasOneNode) {
  auto status = status_of_node("a");
  status["nodes_present"] = {"a"};
  const JobFindings found = find({"demo", {status}});
  EXPECT_EQ(compare_job(found, planner::Planner(found.inputs).plan()).effective_time_now, 0);  // it has no storage
}

TEST(PlanOfAJob, PrefersValuesOfTheCommandLine) {
  EXPECT_EQ(find({"demo", {status_of_node("a")}}, "iteration").inputs.job.iteration_s, planner::Job{}.iteration_s);
}

TEST(PlanOfAJob, CountsNodesOfASharedShardAsReplicasAndItsPartsAsOneState) {
  auto status = status_of_node("a");
  status["ranks"][0]["main_shard"] = "all_ranks";
  const JobFindings found = find({"demo", {status}});
  EXPECT_EQ(found.inputs.job.replicas, 4u);
  EXPECT_EQ(found.inputs.job.state_bytes, 2 * (800 + 100));  // each of four nodes captures a half
}

TEST(PlanOfAJob, UsesTheHealthsIterationTimeWithoutLearnedRanks) {
  auto status = status_of_node("a");
  status["schedule"] = nullptr;
  const JobFindings found = find({"demo", {status}});
  EXPECT_EQ(found.inputs.job.iteration_s, 0.7);
  EXPECT_THAT(found.assumed, testing::IsSupersetOf({"idle", "network"}));
}

TEST(PlanOfAJob, SaysWhichOptionItWouldChange) {
  JobFindings found = find({"demo", {status_of_node("a")}});
  found.inputs.job.state_bytes = 1e9;
  found.inputs.cluster.memory_bytes_per_node = 1e12;
  found.protection = {1, 0, 0};
  const JobComparison compared = compare_job(found, planner::Planner(found.inputs).plan());
  std::vector<std::string> options;
  for (const JobChange& change : compared.changes) options.push_back(change.option);
  EXPECT_THAT(options, testing::IsSupersetOf({"protection", "storage_interval_s"}));
  EXPECT_EQ(compared.effective_time_now, 0);  // no copies and no storage: a lost node ends it
}

TEST(PlanOfAJob, RefusesStatusesWithoutRanksOrFields) {
  auto status = status_of_node("a");
  status["ranks"] = nlohmann::json::array();
  EXPECT_THROW(find({"demo", {status}}), Failure);
  EXPECT_THROW(find({"demo", {nlohmann::json{{"node", "a"}}}}), Failure);
}

// ---- Traces ----

TEST(PlanOfATrace, RefusesEmptyAndMalformedTraces) {
  const auto path = std::filesystem::temp_directory_path() / ("plan_command_test." + std::to_string(getpid()));
  for (const char* text : {"", "[]", "{}", "null", R"([{"node_id": "a"}])",
                           R"([{"node_id": "a", "event_time": -1, "event_type": "fault_start"}])",
                           R"([{"node_id": "a", "event_time": "soon", "event_type": "fault_start"}])",
                           R"([{"node_id": "a", "event_time": 1, "event_type": "fault_end"}])",
                           R"([{"node_id": "a", "event_time": 1, "event_type": "fault_start"}])"}) {
    std::ofstream(path) << text;
    EXPECT_NE(refusal(with([&](PlanOptions& to) { to.trace_path = path; })), "") << text;
  }
  std::filesystem::remove(path);
  EXPECT_THAT(refusal(with([&](PlanOptions& to) { to.trace_path = path; })), HasSubstr("cannot read"));
}

TEST(PlanOfASimulation, AddsSimulatedFiguresToEachPossibleStrategy) {
  const auto json = show_plan(with([](PlanOptions& to) { to.simulated_days = 30; })).json;
  for (const auto& strategy : json.at("strategies"))
    EXPECT_EQ(strategy.contains("simulated"), !strategy.at("effective_time").is_null()) << strategy.at("name");
}

TEST(PlanOfASimulation, RefusesInvalidAndEndlessSimulations) {
  EXPECT_THAT(refusal(with([](PlanOptions& to) { to.simulated_days = -1; })), HasSubstr("simulate must be from 0"));
  EXPECT_THAT(refusal(with([](PlanOptions& to) { to.simulated_days = std::nan(""); })), HasSubstr("not nan"));
  EXPECT_THAT(refusal(with([](PlanOptions& to) {
                to.simulated_days = 1e6;
                to.gpu_mtbf_hours = 0.1;
              })),
              HasSubstr("fewer days"));
  EXPECT_THAT(refusal(with([](PlanOptions& to) {
                to.simulated_days = 1;
                to.weibull_shape = -1;
              })),
              HasSubstr("weibull must be a shape"));
}

TEST(PlanPlot, DrawsThreePanelsWithACurveForEachStrategy) {
  PlanOptions options;
  options.inputs.failures.gpu_mtbf_s = 2e8;
  options.inputs.cluster.gpus = 512;
  const planner::Planner planner(options.inputs);
  const std::string script = plan_plot_script(options.inputs, planner.plan(), "plan.svg");
  for (const char* text : {"nodes lost at once", "failures per day", "'GPUs'", "'every iteration'", "'storage'"})
    EXPECT_THAT(script, HasSubstr(text));
  EXPECT_EQ(script.find("nan"), std::string::npos);
  EXPECT_EQ(script.find("inf"), std::string::npos);
  EXPECT_THAT(refusal(with([](PlanOptions& to) { to.plot_path = "plan.pdf"; })), HasSubstr(".png or .svg"));
}

TEST(PlanPapers, EndWithOneLineThatSaysOk) {
  const auto result = show_plan(with([](PlanOptions& to) { to.papers = true; }));
  EXPECT_TRUE(result.good);
  EXPECT_THAT(result.text, testing::EndsWith("\npaper: table8=ok fig8=ok fig15=ok\n"));
}

TEST(ByteCount, ReadsPlainNumbersAndUnits) {
  EXPECT_EQ(byte_count("state", "1024"), 1024);
  EXPECT_EQ(byte_count("state", "6.5e12"), 6.5e12);
  EXPECT_EQ(byte_count("state", "6.5TB"), 6.5e12);
  EXPECT_EQ(byte_count("state", "16GiB"), 16.0 * (1 << 30));
  for (const char* wrong : {"", "GB", "1XB", "1 GB", "inf", "nan", "1e999"})
    EXPECT_THROW(byte_count("state", wrong), std::invalid_argument) << wrong;
}

}  // namespace
}  // namespace ckpt::cli
