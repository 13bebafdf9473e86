#include "persist/local_file_system.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>

#include "support.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::persist::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Engine = LocalFileSystem::Engine;

struct Way {
  Engine engine;
  bool direct;
  std::string base;  // where the directory is
};

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class LocalFiles : public testing::TestWithParam<Way> {
 protected:
  std::unique_ptr<LocalFileSystem> open(FileSystemOptions options = {.queue_depth = 4, .block_bytes = 65536}) const {
    options.direct = GetParam().direct;
    return std::make_unique<LocalFileSystem>(root_, options, GetParam().engine);
  }

  ckpt::test::TemporaryDirectory directory_{GetParam().base};
  const std::string root_ = directory_.path();
};

TEST_P(LocalFiles, ReadsBackCheckpointsOfAllSizes) {
  const auto files = open();
  for (const std::int64_t elements : {0, 1, 100, 4096, 60001, 300'000}) {
    const CheckpointRecord stored = write_checkpoint(*files, {1, elements}, elements);
    EXPECT_TRUE(holds_what_was_written(*files, stored, elements)) << elements;
  }
  EXPECT_EQ(list_checkpoints(*files, "job").size(), 6u);
  EXPECT_TRUE(find_complete_checkpoint(*files, "job").problems.empty());
  for (const auto& entry : fs::recursive_directory_iterator(root_)) EXPECT_NE(entry.path().extension(), ".part");
}

TEST_P(LocalFiles, WritesUnalignedMemory) {
  const auto files = open();
  const auto data = kernels::random_bytes(5, 1'000'003);
  const auto askew = make_aligned_buffer(data.size() + 3);
  std::memcpy(askew.get() + 3, data.data(), data.size());
  CheckpointWriter writer = writer_on(*files);
  writer.write({manifest_for("blob", {1, 1}, "", data), askew.get() + 3, askew});
  EXPECT_EQ(read_all(*files, writer.commit({1, 1}, 2, {"blob"}), "blob"), data);
}

TEST_P(LocalFiles, ReadsAnyRangeOfAShard) {
  const auto files = open();
  const CheckpointRecord stored = write_checkpoint(*files, {1, 1}, 20'000);
  const auto whole = sample("rank0", {1, 1}, 20'000).bytes;
  ShardReader reader(*files, stored, "rank0");
  const std::uint64_t leaf = kernels::leaf_size_bytes, end = whole.size();
  for (const ByteRange range : {ByteRange{0, 0},
                                {0, 1},
                                {end - 1, 1},
                                {end, 0},
                                {1, end - 1},
                                {leaf, leaf},
                                {leaf - 1, 2},
                                {leaf + 5, 3 * leaf},
                                {2 * leaf, end - 2 * leaf}}) {
    std::vector<std::byte> part(range.size_bytes + 2, std::byte{0xee});
    reader.read(range, part.data() + 1);
    EXPECT_TRUE(std::equal(part.begin() + 1, part.end() - 1, whole.begin() + range.offset_bytes));
    EXPECT_EQ(part.front(), std::byte{0xee});
    EXPECT_EQ(part.back(), std::byte{0xee});
  }
  for (const ByteRange range : {ByteRange{0, end + 1}, {end, 1}, {end + 1, 0}, {8, UINT64_MAX}})
    EXPECT_THROW(reader.read(range, nullptr), Failure);
}

TEST_P(LocalFiles, FailuresNameTheOperationThePathAndTheReason) {
  const auto files = open();
  const auto sentence = [](auto call) -> std::string {
    try {
      call();
    } catch (const StorageError& error) {
      return error.what();
    }
    return "no failure";
  };
  files->make_directory("job");
  EXPECT_EQ(sentence([&] { files->open("job/x"); }), "cannot open " + root_ + "/job/x: No such file or directory");
  EXPECT_THAT(sentence([&] { files->list("job/x"); }), HasSubstr("cannot list " + root_ + "/job/x: No such file"));
  EXPECT_THAT(sentence([&] { files->rename("a", "b"); }),
              HasSubstr("cannot rename " + root_ + "/a to " + root_ + "/b"));
  EXPECT_THAT(sentence([&] { files->remove("a"); }), HasSubstr("cannot remove " + root_ + "/a"));
  EXPECT_THAT(sentence([&] { files->sync_directory("a"); }), HasSubstr("cannot open " + root_ + "/a"));
  EXPECT_FALSE(files->file_size("job/x"));
  files->create("job/x", 10);
  EXPECT_THAT(sentence([&] { files->create("job/x", 0); }), HasSubstr("File exists"));
  EXPECT_THAT(sentence([&] { files->remove_directory("job"); }), HasSubstr("Directory not empty"));
  EXPECT_THAT(sentence([&] { files->make_directory("job/x/y"); }), HasSubstr("Not a directory"));
  EXPECT_THAT(sentence([&] { files->create("job/huge", 1ull << 60); }), HasSubstr("cannot reserve"));
  EXPECT_GT(files->free_bytes(), 0u);
}

TEST_P(LocalFiles, SeveralWritersFillOneFileAndTakenNamesStay) {
  const auto files = open(), others = open();
  expect_several_fill_one_file(*files, *others);
  files->link("job/step-00000007/manifest.json", "job/x");
  EXPECT_EQ(slurp(root_ + "/job/x"), slurp(root_ + "/job/step-00000007/manifest.json"));
  try {
    files->link("job/step-00000007/rank0.1.json", "job/x");
    ADD_FAILURE() << "the name was taken";
  } catch (const StorageError& error) {
    EXPECT_EQ(error.error(), EEXIST);
    EXPECT_THAT(error.what(), HasSubstr("cannot link " + root_ + "/job/step-00000007/rank0.1.json to " + root_));
  }
  ASSERT_TRUE(files->modified_s("job/x"));
  EXPECT_NEAR(static_cast<double>(*files->modified_s("job/x")), static_cast<double>(std::time(nullptr)), 60);
  EXPECT_FALSE(files->modified_s("job/y"));
}

// Nothing is written to the disk that a missing mount would hide, and nobody takes it for one without checkpoints.
TEST_P(LocalFiles, MissingLocationIsNotCreatedAndNotEmpty) {
  FileSystemOptions options{.queue_depth = 4, .block_bytes = 65536};
  options.direct = GetParam().direct;
  LocalFileSystem files(root_ + "/mount", options, GetParam().engine);
  const std::string sentence = "cannot use the storage " + root_ + "/mount: it does not exist; create it, or mount it";
  EXPECT_EQ(refusal(CKPT_ERR_SYSTEM, [&] { list_checkpoints(files, "job"); }), sentence);
  EXPECT_EQ(refusal(CKPT_ERR_SYSTEM, [&] { write_checkpoint(files, {1, 1}, 3); }), sentence);
  EXPECT_THAT(refusal(CKPT_ERR_SYSTEM, [&] { files.make_directory("job"); }), HasSubstr("No such file"));
  EXPECT_FALSE(fs::exists(root_ + "/mount"));
  fs::create_directory(root_ + "/mount");
  EXPECT_TRUE(list_checkpoints(files, "job").empty());
  EXPECT_TRUE(holds_what_was_written(files, write_checkpoint(files, {1, 1}, 3), 3));
}

TEST_P(LocalFiles, ListingDistinguishesFilesFromDirectories) {
  const auto files = open();
  files->make_directory("job");
  files->make_directory("job/a");
  files->create("job/b", 0);
  std::map<std::string, bool> found;
  for (const DirectoryEntry& entry : files->list("job")) found[entry.name] = entry.is_directory;
  EXPECT_EQ(found, (std::map<std::string, bool>{{"a", true}, {"b", false}}));
}

// Opening a fifo to read waits for somebody who writes: a storage that hangs.
TEST_P(LocalFiles, HungOperationEndsAtItsDeadlineAndTheNextIsServed) {
  const auto files = open({.timeout_ms = 200, .queue_depth = 4, .block_bytes = 65536});
  ASSERT_EQ(::mkfifo((root_ + "/hung").c_str(), 0600), 0);
  try {
    files->open("hung");
    FAIL() << "it opened";
  } catch (const StorageError& error) {
    EXPECT_EQ(error.status(), CKPT_ERR_TIMEOUT);
    EXPECT_THAT(error.what(), HasSubstr("cannot open " + root_ + "/hung: the storage did not answer in time"));
  }
  files->make_directory("job");
  EXPECT_EQ(files->list("").size(), 2u);
  ::close(::open((root_ + "/hung").c_str(), O_RDWR));  // lets it end
}

TEST_P(LocalFiles, ClosingManyFilesAtOnceBlocksNothingForever) {
  const auto files = open({.timeout_ms = 60'000, .queue_depth = 1, .block_bytes = 65536});
  std::vector<std::unique_ptr<File>> opened;
  for (int i = 0; i < 200; ++i) opened.push_back(files->create(std::to_string(i), 0));
  opened.clear();
  EXPECT_EQ(files->list("").size(), 200u);
}

TEST_P(LocalFiles, ServesAgainAfterALongHang) {
  const auto files = open({.timeout_ms = 5, .queue_depth = 4, .block_bytes = 65536});
  ASSERT_EQ(::mkfifo((root_ + "/hung").c_str(), 0600), 0);
  for (int i = 0; i < 30; ++i) EXPECT_THROW(files->open("hung"), StorageError);
  EXPECT_THAT(refusal(CKPT_ERR_TIMEOUT, [&] { files->open("hung"); }),
              HasSubstr("while earlier operations do not end"));
  const UniqueFd writer(::open((root_ + "/hung").c_str(), O_RDWR | O_CLOEXEC));  // lets all of them end
  const auto serves = [&] {
    try {
      files->make_directory("job");
      return true;
    } catch (const StorageError&) {
      return false;
    }
  };
  const Deadline deadline = Deadline::in_ms(20'000);
  bool served = serves();
  while (!served && !deadline.passed()) served = serves();
  EXPECT_TRUE(served);
}

TEST_P(LocalFiles, ReleasesMemoryOfAnUnawaitedTransferWhenItEnds) {
  const auto files = open();
  auto memory = make_aligned_buffer(65536);
  const std::weak_ptr<std::byte> lent = memory;
  {
    const auto file = files->create("a", 65536);
    file->start_write(0, 0, memory.get(), 65536, memory);
  }
  memory.reset();
  const Deadline deadline = Deadline::in_ms(20'000);
  while (!lent.expired() && !deadline.passed()) files->file_size("a");
  EXPECT_TRUE(lent.expired());
}

TEST_P(LocalFiles, StopEndsAWaitBeforeItsDeadline) {
  std::stop_source stop;
  const auto files = open({.timeout_ms = 60'000, .queue_depth = 4, .block_bytes = 65536, .stop = stop.get_token()});
  ASSERT_EQ(::mkfifo((root_ + "/hung").c_str(), 0600), 0);
  std::thread stopper([&] { stop.request_stop(); });
  try {
    files->open("hung");
    FAIL() << "it opened";
  } catch (const StorageError& error) {
    EXPECT_EQ(error.error(), ECANCELED);
  }
  stopper.join();
  EXPECT_THROW(files->list(""), StorageError);
  ::close(::open((root_ + "/hung").c_str(), O_RDWR));
}

// The tail of a file may pass through the page cache while its body does not; both are there for whoever opens it.
TEST_P(LocalFiles, OtherProgramsSeeTheCompleteFile) {
  const auto files = open();
  const Sample rank0 = sample("rank0", {1, 1}, 123'457);
  const ShardRecord record = writer_on(*files).write(rank0.piece);
  const std::string file = slurp(root_ + "/job/step-00000001/rank0.1.safetensors");
  ASSERT_EQ(file.size(), record.file_bytes());
  EXPECT_EQ(file.compare(record.header_bytes, std::string::npos, reinterpret_cast<const char*>(rank0.bytes.data()),
                         rank0.bytes.size()),
            0);
}

TEST_P(LocalFiles, SupportsManyConcurrentReaders) {
  const CheckpointRecord stored = write_checkpoint(*open(), {1, 1}, 50'000);
  std::vector<std::thread> readers;
  std::atomic<int> right{0};
  for (int i = 0; i < 8; ++i)
    readers.emplace_back([&] {
      const auto files = open();
      if (holds_what_was_written(*files, stored, 50'000)) ++right;
    });
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(right, 8);
}

std::string name_of(const testing::TestParamInfo<Way>& info) {
  return std::string(info.param.engine == Engine::threads ? "Threads" : "Uring") +
         (info.param.direct ? "Direct" : "Buffered") + (info.param.base == "/dev/shm" ? "Tmpfs" : "");
}

INSTANTIATE_TEST_SUITE_P(Ways, LocalFiles,
                         testing::Values(Way{Engine::automatic, true, ""}, Way{Engine::automatic, false, ""},
                                         Way{Engine::threads, true, ""}, Way{Engine::threads, false, ""},
                                         Way{Engine::automatic, true, "/dev/shm"}),
                         name_of);

TEST(Locations, AcceptOnlyAbsolutePathsAndServers) {
  for (const std::string location : {"", "relative", "http://server/path", "./x"})
    EXPECT_THROW(open_file_system(location, {}), Failure) << location;
  EXPECT_EQ(open_file_system("/mnt/ckpt//", {})->label("job"), "/mnt/ckpt/job");
  EXPECT_THROW(open_file_system("/mnt", {.queue_depth = 0}), Failure);
  EXPECT_THROW(open_file_system("/mnt", {.block_bytes = 4096}), Failure);
}

}  // namespace
}  // namespace ckpt::persist::test
