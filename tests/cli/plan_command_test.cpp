#include "cli/plan/plan_command.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "cli/plan/byte_count.hpp"
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
    if (strategy.at("name") == "jit") continue;  // it needs replicas
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

TEST(PlanCommand, NeverRecommendsWhatThisVersionDoesNotHave) {
  const auto json = show_plan(with([](PlanOptions& to) { to.inputs.job.replicas = 8; })).json;
  double best = 0;
  for (const auto& strategy : json.at("strategies")) {
    if (strategy.at("name") != "jit" && strategy.at("name") != "auto") continue;
    EXPECT_EQ(strategy.at("obstacle"), "not available in this version");
    best = std::max(best, strategy.at("effective_time").get<double>());
  }
  EXPECT_GT(best, json.at("recommended").at("effective_time").get<double>());  // jit would win, and is not named
  EXPECT_TRUE(json.at("recommended").at("available").get<bool>());
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
              HasSubstr("domain-share needs domain-nodes"));
  EXPECT_THAT(refusal(with([](PlanOptions& to) { to.inputs.job.replicas = 5000; })), HasSubstr("5000 replicas"));
}

TEST(PlanCommand, RefusesAProtectionThatDoesNotFit) {
  EXPECT_EQ(refusal(with([](PlanOptions& to) {
              to.protection = "copies(3)";
              to.memory = "10GiB";
            })),
            "copies(3) takes 33.9 GiB of each node's memory, and 10 GiB are there");
  EXPECT_EQ(refusal(with([](PlanOptions& to) {
              to.protection = "copies(3)";
              to.inputs.cluster.gpus = 8;
            })),
            "copies(3) needs 3 nodes, and there are 1");
  EXPECT_THAT(refusal(with([](PlanOptions& to) { to.protection = "xor(1)"; })), HasSubstr("not 'xor(1)'"));
}

TEST(PlanCommand, SaysSoIfNothingFits) {
  const auto result = show_plan(with([](PlanOptions& to) { to.memory = "0"; }));
  EXPECT_TRUE(result.json.at("recommended").is_null());
  EXPECT_THAT(result.text, HasSubstr("Nothing that can be set today fits this cluster."));
}

TEST(PlanCommand, TakesTwoSlotsWhereThreeDoNotFit) {
  const auto json = show_plan(with([](PlanOptions& to) { to.memory = "28GB"; })).json;
  EXPECT_EQ(json.at("recommended").at("options").at("own_slots"), "2");
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
