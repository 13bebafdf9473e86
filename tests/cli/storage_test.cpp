// ckptctl's commands over storage, as functions; tests/process/test_storage_tools.py runs the program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "cli/storage/storage_commands.hpp"
#include "tests/persist/support.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Progress, BarShowsShareRateAndTimeLeft) {
  EXPECT_EQ(bar_text("reading", 0, 100, 0), "reading  [--------------------]    0 %");
  EXPECT_EQ(bar_text("reading", std::uint64_t{1} << 30, std::uint64_t{4} << 30, 2000),
            "reading  [#####---------------]   25 %  512 MiB/s  6.0 s left");
  EXPECT_EQ(bar_text("reading", 7, 0, 1000), "reading  [####################]  100 %  7 B/s  0 ms left");
}

TEST(Progress, PrintsOneLinePerItemWithoutATerminal) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), std::fclose);
  {
    Progress progress(Progress::Form::lines, file.get());
    progress.begin("reading checkpoint 1", 2048);
    progress.advance(2048);
    progress.begin("reading checkpoint 2", 1024);
  }
  std::rewind(file.get());
  std::array<char, 256> text{};
  std::fread(text.data(), 1, text.size() - 1, file.get());
  EXPECT_STREQ(text.data(), "reading checkpoint 1, 2.0 KiB\nreading checkpoint 2, 1.0 KiB\n");
}

class StorageCommandsTest : public ::testing::Test {
 protected:
  StorageCommandsTest() {
    const auto files = persist::open_file_system(scope_.location, {});
    for (const std::int64_t iteration : {1, 2, 3}) persist::test::write_checkpoint(*files, CheckpointId(1, iteration));
  }

  std::string stored(std::int64_t iteration) const {
    return scope_.location + "/job/" + persist::folder_name(iteration) + "/";
  }
  static void damage(const std::string& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(5000);
    const int byte = file.get();
    file.seekp(5000);
    file.put(static_cast<char>(byte ^ 1));
  }
  std::vector<std::int64_t> checkpoints_left() const {
    std::vector<std::int64_t> found;
    const Result result = ls(scope_);
    for (const auto& shown : result.json.at("checkpoints")) found.push_back(shown.at("iteration"));
    return found;
  }
  RemoveOptions answer(bool yes) {
    return {false, [this, yes](const std::string& question) {
              question_ = question;
              return yes;
            }};
  }
  template <class Command>
  static std::string failure_of(Command command) {
    try {
      return "no failure, but: " + command().text;
    } catch (const Failure& failure) {
      return failure.what();
    }
  }

  ckpt::test::TemporaryDirectory directory_;
  StorageScope scope_{directory_.path(), "job", {}};
  Progress quiet_;
  std::string question_;
};

TEST_F(StorageCommandsTest, LsShowsJobsThenCheckpoints) {
  StorageScope all = scope_;
  all.job.clear();
  EXPECT_EQ(ls(all).json.at("jobs")[0].at("newest_usable"), 3);
  EXPECT_THAT(checkpoints_left(), ElementsAre(3, 2, 1));
}

TEST_F(StorageCommandsTest, InspectShowsTensorsWithTheirOffsets) {
  const auto tensors = inspect(scope_, "latest", "rank1").json.at("tensors");
  const arena::Layout layout = persist::test::mixed_layout(3200);
  ASSERT_EQ(tensors.size(), layout.entries.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(tensors[i].at("name"), layout.entries[i].name);
    EXPECT_EQ(tensors[i].at("offset_bytes"), layout.entries[i].offset_bytes);
  }
  EXPECT_THAT(failure_of([&] { return inspect(scope_, "2", "rank2"); }), HasSubstr("its shards are: rank0, rank1"));
}

TEST_F(StorageCommandsTest, VerifyDistinguishesWholeFromDamagedCheckpoints) {
  EXPECT_TRUE(verify(scope_, {}, quiet_).good);
  damage(stored(2) + "rank0.1.safetensors");
  std::filesystem::remove(stored(3) + "rank1.1.leaves");
  const Result result = verify(scope_, {}, quiet_);
  EXPECT_FALSE(result.good);
  EXPECT_THAT(result.text, HasSubstr("rank1.1.leaves is missing"));
  EXPECT_THAT(result.text, HasSubstr("rank0.1.safetensors is damaged"));
  EXPECT_THAT(result.text, HasSubstr("checkpoint 1: whole"));
  EXPECT_TRUE(verify(scope_, {"1"}, quiet_).good);
}

TEST_F(StorageCommandsTest, RmAsksFirstAndKeepsTheNewestCheckpoint) {
  EXPECT_FALSE(rm(scope_, {"1", "2"}, answer(false)).good);
  EXPECT_THAT(question_, HasSubstr("checkpoint 1, checkpoint 2 of job job"));
  EXPECT_THAT(failure_of([&] { return rm(scope_, {"1"}, {}); }), HasSubstr("--yes"));
  EXPECT_THAT(failure_of([&] { return rm(scope_, {"3"}, answer(true)); }), HasSubstr("--force"));
  EXPECT_THAT(checkpoints_left(), ElementsAre(3, 2, 1));
  EXPECT_TRUE(rm(scope_, {"1", "1"}, answer(true)).good);
  EXPECT_THAT(checkpoints_left(), ElementsAre(3, 2));
}

TEST_F(StorageCommandsTest, RawExportIsAStorageWithThatCheckpoint) {
  ckpt::test::TemporaryDirectory target;
  ExportOptions options;
  options.checkpoint = "2";
  options.raw = target.path();
  EXPECT_TRUE(export_checkpoint(scope_, options, quiet_).good);
  const StorageScope copy{target.path(), "job", {}};
  EXPECT_TRUE(verify(copy, {"2"}, quiet_).good);
  EXPECT_THAT(failure_of([&] { return export_checkpoint(scope_, options, quiet_); }), HasSubstr("already"));
  damage(stored(3) + "rank0.1.safetensors");
  options.checkpoint = "3";
  EXPECT_THAT(failure_of([&] { return export_checkpoint(scope_, options, quiet_); }),
              HasSubstr("nothing was exported"));
  EXPECT_FALSE(std::filesystem::exists(target.path() + "/job/" + persist::folder_name(3)));
}

}  // namespace
}  // namespace ckpt::cli
