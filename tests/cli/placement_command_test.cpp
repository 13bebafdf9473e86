#include "cli/placement/placement_command.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.hpp"

namespace ckpt::cli {
namespace {

namespace fs = std::filesystem;

class PlacementCommand : public testing::Test {
 protected:
  PlacementCommand() : folder_(fs::temp_directory_path() / ("placement_command_test." + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~PlacementCommand() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ / name; }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }
  static std::string refusal(const PlacementOptions& options) {
    try {
      show_placement(options);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

 private:
  fs::path folder_;
};

PlacementOptions options(std::uint32_t nodes, std::uint32_t copies, const std::string& strategy, std::uint32_t lost) {
  PlacementOptions options;
  options.nodes = nodes;
  options.copies = copies;
  options.strategy = strategy;
  options.lost = lost;
  options.trials = 2'000;
  options.numberings = 5;
  return options;
}

TEST_F(PlacementCommand, PrintsHoldersSurvivalOddsAndBytesAsJson) {
  const auto json = show_placement(options(16, 2, "ring", 3)).json;
  EXPECT_EQ(json.at("holders").size(), 16u);
  EXPECT_EQ(json.at("holders").at(15), nlohmann::json({15, 0}));
  EXPECT_NEAR(json.at("survival_exact"), 352.0 / 560, 1e-15);
  EXPECT_NEAR(json.at("survival_bound"), 0.6, 1e-12);
  EXPECT_EQ(json.at("survival_count").at("survivors"), 352);
  EXPECT_EQ(json.at("bytes_sent_per_node"), 1);
  EXPECT_EQ(json.at("bytes_stored_per_node"), 2);
  EXPECT_EQ(json.at("stores").at(3).size(), 2u);
  EXPECT_EQ(json.at("sends").size(), 16u);
  EXPECT_EQ(json.at("sends").at(0), (nlohmann::json{{"from", 0}, {"to", 1}, {"shard", 0}, {"range", {0, 1}}}));
}

TEST_F(PlacementCommand, ShowsThatRedundantCopyingSendsNothing) {
  const auto json = show_placement(options(16, 4, "sharded+copy", 2)).json;
  EXPECT_EQ(json.at("holders").at(3), nlohmann::json({12, 13, 14, 15}));
  EXPECT_EQ(json.at("bytes_sent_per_node"), 0);
  EXPECT_EQ(json.at("bytes_stored_per_node"), 0.5);
  EXPECT_TRUE(json.at("survival_bound").is_null());
}

TEST_F(PlacementCommand, ComparesAllStrategies) {
  const auto result = show_placement(options(17, 3, "all", 3));
  EXPECT_EQ(result.json.at("strategies").size(), 6u);
  EXPECT_NE(result.text.find("cover"), std::string::npos);
  for (const auto& each : result.json.at("strategies")) {
    if (each.at("strategy") == "cover") {
      EXPECT_EQ(each.at("distinct_holder_sets"), 6);
      EXPECT_EQ(each.at("bytes_received_per_node"), 4);  // its price: the others receive 2
    }
  }
}

TEST_F(PlacementCommand, ReportsCopiesThatDomainsCannotSeparate) {
  auto question = options(4, 2, "group", 2);
  question.domains_path = file("domains", "0 rack0\n1 rack0\n2 rack0\n3 rack1\n");
  question.correlation = 0.5;
  const auto result = show_placement(question);
  EXPECT_EQ(result.json.at("unseparated").size(), 1u);
  EXPECT_EQ(result.json.at("unseparated").at(0).at("domain"), "rack0");
  EXPECT_NE(result.text.find("hold copies of one shard in one failure domain"), std::string::npos);
  EXPECT_LT(result.json.at("survival_simulated").at("survival"), result.json.at("survival_exact"));

  question.domains_path = file("separable", "0 rack0\n1 rack0\n2 rack1\n3 rack1\n");
  const auto separated = show_placement(question);
  EXPECT_TRUE(separated.json.at("unseparated").empty());
  EXPECT_EQ(separated.json.at("holders").at(0).at(1).get<int>() / 2, 1);  // in the other rack
}

TEST_F(PlacementCommand, ReplaysATrace) {
  std::string text;
  for (const char* type : {"fault_start", "fault_end"}) {
    for (const char* node : {"a", "b"}) {
      text += (text.empty() ? "[" : ", ") + std::string(R"({"node_id": ")") + node + R"(", "event_type": ")" + type +
              R"(", "event_time": )" + (type[6] == 's' ? "1" : "2") + "}";
    }
  }
  auto question = options(2, 2, "all", 1);
  question.trace_path = file("trace", text + "]");
  question.synthetic_racks = 1;
  const auto trace = show_placement(question).json.at("trace");
  EXPECT_EQ(trace.at("moments"), 1);
  EXPECT_EQ(trace.at("most_lost"), 2);
  EXPECT_EQ(trace.at("strategies").at("group").at("lost_random"), 1);
  EXPECT_EQ(trace.at("strategies").at("sharded").at("bytes_stored_per_node"), 0.5);
}

TEST_F(PlacementCommand, DrawsAPlot) {
  auto question = options(16, 2, "group", 2);
  for (const auto& [name, start] : {std::pair("plot.svg", "<?xml"), std::pair("it's.png", "\x89PNG")}) {
    question.plot_path = path(name);
    show_placement(question);
    std::ifstream plot(question.plot_path, std::ios::binary);
    std::ostringstream bytes;
    bytes << plot.rdbuf();
    EXPECT_EQ(bytes.str().substr(0, std::string(start).size()), start);
    EXPECT_GT(bytes.str().size(), 5'000u);
  }
}

TEST_F(PlacementCommand, RefusesBadInputInOneSentence) {
  EXPECT_EQ(refusal(options(4, 5, "all", 1)),
            "5 copies need as many nodes, but there are only 4: ask for fewer copies or add nodes");
  EXPECT_EQ(refusal(options(4, 2, "group", 5)), "5 lost nodes are too many: there are only 4 nodes");
  EXPECT_EQ(refusal(options(4, 0, "group", 1)), "a placement needs at least one copy, the node's own, not 0");
  auto question = options(4, 2, "group", 1);
  question.correlation = 0.5;
  EXPECT_EQ(refusal(question),
            "the correlation is above 0, but failure domains are not known for all 4 nodes: name them (--domains)");
  question = options(4, 2, "group", 1);
  question.trace_path = path("missing");
  EXPECT_EQ(refusal(question),
            "cannot read the file " + path("missing") + "; name a file that exists and that this user can read");
  question = options(4, 2, "group", 1);
  question.plot_path = path("plot.gif");
  EXPECT_EQ(refusal(question), "cannot plot to '" + path("plot.gif") + "': name a file that ends in .png or .svg");
}

}  // namespace
}  // namespace ckpt::cli
