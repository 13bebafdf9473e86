#include "options/options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.hpp"

namespace ckpt {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const OptionPairs minimal = {{"job", "demo"}, {"rank", "1"}, {"world_size", "4"}};

OptionPairs with(OptionPairs pairs, const OptionPairs& more) {
  pairs.insert(pairs.end(), more.begin(), more.end());
  return pairs;
}

std::string refusal(const OptionPairs& caller, std::vector<const char*> environment = {}) {
  environment.push_back(nullptr);
  try {
    parse_options(Reader::engine, caller, environment.data());
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.status(), CKPT_ERR_INVALID);
    return failure.what();
  }
  return "accepted";
}

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / ("ckpt-options-" + std::to_string(getpid()) + ".json")) {
    std::ofstream(path_) << text;
  }
  ~ConfigFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(Options, DefaultsFollowFromJobRankAndUser) {
  const Options options = parse_options(Reader::engine, minimal, nullptr);
  const std::string user = std::to_string(geteuid());
  EXPECT_EQ(options.shard, "rank1");
  EXPECT_EQ(options.private_shard(), "rank1.private");
  EXPECT_EQ(options.arena_dir, "/dev/shm/ckptengine-" + user);
  EXPECT_EQ(options.coordination, "/tmp/ckptengine-" + user);
  EXPECT_EQ(options.node_dir(), options.arena_dir + "/demo/" + options.node);
  EXPECT_EQ(options.agent, AgentMode::automatic);
  EXPECT_EQ(options.copies, 2u);
  EXPECT_FALSE(options.node.empty());
}

TEST(Options, TheFirstSourceThatNamesAKeyWins) {
  const ConfigFile file(R"({"copies": 5, "heartbeat_ms": "50", "lease_ms": 700})");
  const std::string config = "CKPTENGINE_CONFIG=" + file.path();
  const char* environment[] = {"PATH=/bin", "CKPTENGINE_COPIES=4", "CKPTENGINE_HEARTBEAT_MS=60", config.c_str(),
                               nullptr};
  const Options options = parse_options(Reader::engine, with(minimal, {{"copies", "3"}}), environment);
  EXPECT_EQ(options.copies, 3u);
  EXPECT_EQ(options.heartbeat_ms, 60);
  EXPECT_EQ(options.lease_ms, 700);
}

TEST(Options, RecomputeProtectionMakesCopies) {
  const auto protected_by = [](const char* text) {
    return parse_options(Reader::agent, with(minimal, {{"protection", text}}), nullptr);
  };
  const Options recomputing = protected_by("recompute(3)");
  EXPECT_TRUE(recomputing.recomputes());
  EXPECT_EQ(recomputing.chosen_protection(), placement::Protection::of_copies(3));
  EXPECT_EQ(recomputing.protection_name(), "recompute(3)");
  EXPECT_EQ(protected_by("recompute(2)+xor(4)").protection_name(), "recompute(2)+xor(4)");
  EXPECT_FALSE(protected_by("copies(3)").recomputes());
  EXPECT_EQ(protected_by("copies(3)").protection_name(), "copies(3)");
  EXPECT_EQ(parse_options(Reader::agent, minimal, nullptr).protection_name(), "copies(2)");
  EXPECT_THAT(refusal(with(minimal, {{"protection", "recompute(1)"}})), HasSubstr("must have at least 2 copies"));
  EXPECT_THAT(refusal(with(minimal, {{"protection", "recompute(x)"}})), HasSubstr("must be copies(m)"));
}

TEST(Options, UnknownKeysInCodeOrFileAreRefusedByName) {
  EXPECT_THAT(refusal(with(minimal, {{"colour", "red"}})),
              AllOf(HasSubstr("option \"colour\""), HasSubstr("not known")));
  const ConfigFile file(R"({"colour": "red"})");
  EXPECT_THAT(refusal(with(minimal, {{"config", file.path()}})),
              AllOf(HasSubstr("key \"colour\" in config file " + file.path()), HasSubstr("not known")));
}

std::vector<std::string> warnings(std::vector<const char*> environment) {
  environment.push_back(nullptr);
  return parse_options(Reader::engine, minimal, environment.data()).warnings;
}

TEST(Options, UnknownVariablesAreWarningsAndNotErrors) {
  EXPECT_THAT(warnings({"CKPTENGINE_COLOUR=red", "CKPTENGINE_Copies=3", "PATH=/bin"}),
              ElementsAre(AllOf(HasSubstr("CKPTENGINE_COLOUR"), HasSubstr("no option"), HasSubstr("docs/options.md")),
                          HasSubstr("CKPTENGINE_Copies")));
  const char* environment[] = {"CKPTENGINE_Copies=3", nullptr};
  EXPECT_EQ(parse_options(Reader::engine, minimal, environment).copies, 2u);
}

TEST(Options, IgnoresVariablesOfOtherProgramsThatBeginWithCkpt) {
  EXPECT_THAT(warnings({"CKPT_DIR=/ckpts", "CKPT_PATH=/ckpts/last", "CKPT_", "CKPT=1", "CKPT_EVERY=5"}), IsEmpty());
}

TEST(Options, WarnsOfFormerVariablesOnceAndIgnoresThem) {
  const char* environment[] = {"CKPT_JOB=other", "CKPT_COPIES=none", nullptr};
  const Options options = parse_options(Reader::engine, minimal, environment);
  EXPECT_EQ(options.job, "demo");
  EXPECT_THAT(options.warnings, ElementsAre("environment variables CKPT_COPIES, CKPT_JOB are not read any more; set "
                                            "CKPTENGINE_COPIES, CKPTENGINE_JOB instead"));
  EXPECT_THAT(warnings({"CKPT_COPIES=3", "CKPTENGINE_COPIES=3"}), IsEmpty());
  EXPECT_THAT(refusal({{"job", "demo"}, {"world_size", "2"}}, {"CKPT_RANK=1"}),
              HasSubstr("CKPT_RANK is set, but it is not read any more"));
}

TEST(Options, DoesNotTakeTheMemberHooksVariablesForOptions) {
  EXPECT_THAT(warnings({"CKPTENGINE_MEMBER_JOB=j", "CKPTENGINE_MEMBER_CHANGE=lost", "CKPTENGINE_MEMBER_NODE=n",
                        "CKPTENGINE_MEMBER_REASON=silent"}),
              IsEmpty());
  const char* environment[] = {"CKPTENGINE_MEMBER_HOOK=true", nullptr};
  EXPECT_EQ(parse_options(Reader::agent, {{"job", "demo"}}, environment).member_hook, "true");
}

TEST(Options, RefusesMalformedValuesEvenIfAnotherSourceWins) {
  EXPECT_THAT(refusal(with(minimal, {{"copies", "two"}})), HasSubstr("option \"copies\" has the value \"two\""));
  EXPECT_THAT(refusal(with(minimal, {{"copies", "2"}}), {"CKPTENGINE_COPIES=0"}),
              HasSubstr("variable CKPTENGINE_COPIES"));
  EXPECT_THAT(refusal(with(minimal, {{"copies", "99999999999999999999999"}})), HasSubstr("whole number"));
  EXPECT_THAT(refusal(with(minimal, {{"slot_bytes", "5 MB"}})), HasSubstr("number of bytes"));
  EXPECT_THAT(refusal(with(minimal, {{"slot_bytes", "inf"}})), HasSubstr("number of bytes"));
  EXPECT_THAT(refusal(with(minimal, {{"arena_dir", "shm"}})), HasSubstr("absolute path"));
  EXPECT_THAT(refusal(with(minimal, {{"agent", "on"}})), HasSubstr("auto or attach"));
  EXPECT_THAT(refusal(with(minimal, {{"shard", "a.private"}})), HasSubstr("option \"shard\""));
  EXPECT_THAT(refusal({{"job", "../x"}, {"rank", "0"}, {"world_size", "1"}}), HasSubstr("option \"job\""));
  EXPECT_THAT(refusal({{"job", ".."}, {"rank", "0"}, {"world_size", "1"}}), HasSubstr("option \"job\""));
  EXPECT_THAT(refusal({{"job", "a"}, {"rank", "4"}, {"world_size", "4"}}), HasSubstr("world size is 4"));
  EXPECT_THAT(refusal(with(minimal, {{"job", "again"}})), HasSubstr("given twice"));
}

TEST(Options, RefusesContradictoryTimes) {
  EXPECT_THAT(refusal(with(minimal, {{"heartbeat_ms", "700"}})),
              HasSubstr("node_timeout_ms is 2000, but must be at least three times heartbeat_ms, which is 700"));
  EXPECT_NO_THROW(parse_options(Reader::engine, with(minimal, {{"heartbeat_ms", "666"}}), nullptr));
  for (const char* lease_ms : {"199", "30001"})
    EXPECT_THAT(refusal(with(minimal, {{"lease_ms", lease_ms}})), HasSubstr("option \"lease_ms\"")) << lease_ms;
}

TEST(Options, AcceptsJsonBooleansForFlagsInAConfigFile) {
  const ConfigFile file(R"({"job": "demo", "standby": true})");
  EXPECT_TRUE(parse_options(Reader::agent, {{"config", file.path()}}, nullptr).standby);
}

TEST(Options, MissingKeysAreNamed) {
  EXPECT_THAT(refusal({{"job", "demo"}, {"world_size", "2"}}),
              AllOf(HasSubstr("\"rank\" is missing"), HasSubstr("CKPTENGINE_RANK")));
  EXPECT_NO_THROW(parse_options(Reader::agent, {{"job", "demo"}}, nullptr));
  EXPECT_NO_THROW(parse_options(Reader::tool, {}, nullptr));
}

TEST(Options, BadConfigFilesAreRefused) {
  EXPECT_THAT(refusal(with(minimal, {{"config", "/does/not/exist"}})), HasSubstr("cannot read the file"));
  const ConfigFile list("[1]");
  EXPECT_THAT(refusal(with(minimal, {{"config", list.path()}})), HasSubstr("not a JSON object"));
  const ConfigFile nested(R"({"copies": [2]})");
  EXPECT_THAT(refusal(with(minimal, {{"config", nested.path()}})),
              HasSubstr("must be a string, a whole number, true or false"));
  const ConfigFile chained(R"({"config": "/other"})");
  EXPECT_THAT(refusal(with(minimal, {{"config", chained.path()}})), HasSubstr("cannot name another"));
}

TEST(Options, ParsesItsOwnKeyValuesToTheSameOptions) {
  const Options before = parse_options(
      Reader::engine, with(minimal, {{"arena_bytes", "3GiB"}, {"interface", "lo"}, {"node", "n7"}}), nullptr);
  const auto words = to_key_values(before, Reader::agent);
  const Options after = parse_options(Reader::agent, split_key_values(words), nullptr);
  EXPECT_EQ(to_key_values(after, Reader::agent), words);
  EXPECT_EQ(after.arena_bytes, 3ull << 30);
  EXPECT_EQ(after.interface, "lo");
  EXPECT_EQ(after.node, "n7");
  EXPECT_THAT(words, Not(Contains(HasSubstr("rank="))));
  EXPECT_THROW(split_key_values({"verbose"}), Failure);
}

TEST(Options, ParsesSizesWithUnits) {
  const auto size = [](const char* text) {
    return parse_options(Reader::engine, with(minimal, {{"slot_bytes", text}}), nullptr).slot_bytes;
  };
  EXPECT_EQ(size("65537"), 65537u);
  EXPECT_EQ(size("64KiB"), 65536u);
  EXPECT_EQ(size("1.5GiB"), 3ull << 29);
  EXPECT_EQ(size_text(3ull << 29), "1536MiB");
  EXPECT_EQ(size_text(65537), "65537");
  EXPECT_EQ(size_text(0), "0");
}

TEST(Options, HelpListsEveryKey) {
  const std::string help = options_help();
  for (const char* key : {"`job`", "`copy_threads`", "`claim_timeout_ms`", "`config`"})
    EXPECT_THAT(help, HasSubstr(key));
  EXPECT_THAT(options_help(Reader::agent), Not(HasSubstr("`copy_threads`")));
}

}  // namespace
}  // namespace ckpt
