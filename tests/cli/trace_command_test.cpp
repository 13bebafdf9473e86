// ckptctl trace against an agent that answers over a real socket, and the plot it draws.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "../client/fake_agent.hpp"
#include "cli/commands.hpp"
#include "cli/timeline/timeline_plot.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::cli {
namespace {

using client::FakeAgent;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

json iterations_of_10_ms() {
  json events = json::array();
  for (std::int64_t k = 0; k < 6; ++k) {
    const std::int64_t at_us = 10'000 * k;
    events.push_back({{"kind", "iteration"}, {"rank", 0}, {"at_us", at_us}});
    for (const std::int64_t begin_us : {at_us + 1000, at_us + 6000})
      events.push_back({{"kind", "communication"}, {"rank", 0}, {"begin_us", begin_us}, {"end_us", begin_us + 2000}});
    events.push_back(
        {{"kind", "capture"}, {"rank", 0}, {"iteration", k}, {"begin_us", at_us}, {"end_us", at_us + 500}});
    for (const std::int64_t begin_us : {at_us + 3000, at_us + 4000})
      events.push_back({{"kind", "chunk"},
                        {"peer", "node_1"},
                        {"shard", "rank0"},
                        {"incarnation", 1},
                        {"iteration", k},
                        {"bytes", 2 << 20},
                        {"begin_us", begin_us},
                        {"end_us", begin_us + 1500}});
    events.push_back({{"kind", "commit"}, {"incarnation", 1}, {"iteration", k}, {"at_us", at_us + 9000}});
  }
  return {{"job", "job"}, {"node", "node"}, {"now_us", 70'000}, {"events", events}};
}

class TraceCommandTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }
  Scope scope(const std::string& job = "") const { return {path("arena"), path("coordination"), job, ""}; }
  TraceOptions options() const { return {3, path("trace.json"), ""}; }
  static std::string contents(const std::string& of) {
    std::ifstream file(of, std::ios::binary);
    std::ostringstream bytes;
    bytes << file.rdbuf();
    return bytes.str();
  }
  std::string failure_of(const TraceOptions& with, const std::string& job = "") {
    try {
      return "no failure, but: " + trace(scope(job), with).text;
    } catch (const Failure& failure) {
      return failure.what();
    }
  }

  test::TemporaryDirectory directory_;
};

TEST_F(TraceCommandTest, WritesTheAgentsTrace) {
  FakeAgent agent(scope().arena_dir);
  agent.answer_with("trace", {{"trace", iterations_of_10_ms()}});
  const Result result = trace(scope("job"), options());
  EXPECT_TRUE(result.good);
  EXPECT_THAT(result.text, AllOf(StartsWith("wrote 22 events of 1 node from 3 iterations to " + path("trace.json")),
                                 HasSubstr("ui.perfetto.dev")));
  const json file = json::parse(contents(path("trace.json")));
  std::size_t captures = 0;
  for (const json& event : file.at("traceEvents"))
    if (event.at("name").get<std::string>().starts_with("capture")) ++captures;
  EXPECT_EQ(captures, 3u);
  EXPECT_EQ(result.json.at("nodes")[0], (json{{"job", "job"}, {"node", "node"}, {"events", 22}}));
}

TEST_F(TraceCommandTest, DrawsAPlot) {
  FakeAgent agent(scope().arena_dir);
  agent.answer_with("trace", {{"trace", iterations_of_10_ms()}});
  for (const auto& [name, start] : {std::pair("plot.svg", "<?xml"), std::pair("it's.png", "\x89PNG")}) {
    TraceOptions with = options();
    with.plot = path(name);
    EXPECT_THAT(trace(scope(), with).text, HasSubstr(with.plot));
    const std::string plot = contents(with.plot);
    EXPECT_THAT(plot, StartsWith(start));
    EXPECT_GT(plot.size(), 5'000u);
  }
  const std::string svg = contents(path("plot.svg"));
  for (const char* text : {"rank 0: communication", "rank 0: capture", "chunks to node_1", "commits", "time (ms)",
                           "checkpoint chunks", "no training communication", "node node"})
    EXPECT_THAT(svg, HasSubstr(text));
}

TEST_F(TraceCommandTest, DrawsAPlotOfASingleInstant) {
  FakeAgent agent(scope().arena_dir);
  agent.answer_with(
      "trace", {{"trace", {{"events", {{{"kind", "commit"}, {"incarnation", 1}, {"iteration", 3}, {"at_us", 5}}}}}}});
  TraceOptions with = options();
  with.plot = path("plot.svg");
  EXPECT_THAT(trace(scope(), with).text, HasSubstr("wrote 1 event of 1 node from less than an iteration"));
  EXPECT_THAT(contents(with.plot), HasSubstr("commits"));
}

TEST_F(TraceCommandTest, ReportsUnreadableEvents) {
  FakeAgent agent(scope().arena_dir);
  json answer = iterations_of_10_ms();
  answer["events"].push_back({{"kind", "commit"}});
  agent.answer_with("trace", {{"trace", answer}});
  EXPECT_THAT(trace(scope(), options()).text, HasSubstr("1 event could not be read"));
}

TEST_F(TraceCommandTest, ReportsBadInputInOneSentence) {
  EXPECT_THAT(failure_of(options()), HasSubstr("there is no arena in " + scope().arena_dir));
  TraceOptions with = options();
  with.plot = path("plot.gif");
  EXPECT_EQ(failure_of(with), "cannot plot to '" + path("plot.gif") + "': name a file that ends in .png or .svg");
  {
    FakeAgent agent(scope().arena_dir);
    EXPECT_THAT(failure_of(options(), "other"), HasSubstr("the jobs there are: job"));
    EXPECT_THAT(failure_of(options()), HasSubstr("has no recording"));
    agent.answer_with("trace", {{"status", CKPT_ERR_INVALID}, {"message", "there is no request \"trace\""}});
    EXPECT_EQ(failure_of(options()), "node node of job job: there is no request \"trace\"");
    agent.answer_with("trace", {{"status", CKPT_OK}, {"trace", {{"now_us", 1}, {"events", json::array()}}}});
    EXPECT_THAT(failure_of(options()), HasSubstr("nothing to show yet"));
    EXPECT_FALSE(std::filesystem::exists(path("trace.json")));
    agent.answer_with("trace", {{"trace", iterations_of_10_ms()}});
    with = options();
    with.output = path("missing/trace.json");
    EXPECT_EQ(failure_of(with), "cannot write " + with.output + ": No such file or directory");
    with = options();
    with.plot = path("missing/plot.png");
    EXPECT_EQ(failure_of(with), "cannot write " + with.plot + ": No such file or directory");
  }
  EXPECT_EQ(failure_of(options()), "node node of job job: its agent is not running");
}

TEST_F(TraceCommandTest, ShowsTheOtherAgentsIfOneIsGone) {
  std::filesystem::create_directories(path("arena") + "/job/gone");
  std::ofstream(path("arena") + "/job/gone/node") << std::string("CKPTNE1\0", 8);
  FakeAgent agent(scope().arena_dir);
  agent.answer_with("trace", {{"trace", iterations_of_10_ms()}});
  const Result result = trace(scope(), options());
  EXPECT_TRUE(result.good);
  EXPECT_THAT(result.text, HasSubstr("without node gone of job job: its agent is not running"));
}

}  // namespace
}  // namespace ckpt::cli
