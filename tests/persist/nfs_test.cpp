// Against a real server: nfs-ganesha, in user space, on the loopback interface (scripts/nfs_server.sh).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <cstdio>
#include <fstream>

#include "persist/nfs_file_system.hpp"
#include "persist/write_queue.hpp"
#include "support.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::persist::test {
namespace {

using testing::HasSubstr;

class NfsServer {
 public:
  explicit NfsServer(std::string size = {}) : size_(std::move(size)) { start(); }
  ~NfsServer() { run("stop " + folder_.path()); }
  NfsServer(const NfsServer&) = delete;
  NfsServer& operator=(const NfsServer&) = delete;

  // Again after kill(), too.
  void start() {
    location_ = run("start " + folder_.path() + " " + size_);
    location_.resize(location_.find_last_not_of('\n') + 1);
  }
  void kill() { signal(SIGKILL); }
  void stop() { signal(SIGSTOP); }
  void resume() { signal(SIGCONT); }
  const std::string& location() const { return location_; }
  std::string exported() const { return folder_.path() + "/export"; }

 private:
  static std::string run(const std::string& arguments) {
    const std::string command = "bash " CKPT_SOURCE_DIR "/scripts/nfs_server.sh " + arguments;
    FILE* const output = ::popen(command.c_str(), "r");
    std::string text;
    std::array<char, 256> part{};
    while (output != nullptr && std::fgets(part.data(), part.size(), output) != nullptr) text += part.data();
    if (output == nullptr || ::pclose(output) != 0) throw std::runtime_error("failed: " + command);
    return text;
  }
  void signal(int number) const {
    pid_t pid = 0;
    std::ifstream(folder_.path() + "/pid") >> pid;
    ASSERT_GT(pid, 0);
    ASSERT_EQ(::kill(pid, number), 0);
  }

  ckpt::test::TemporaryDirectory folder_;
  const std::string size_;
  std::string location_;
};

FileSystemOptions options(std::int64_t timeout_ms = 30'000) {
  return {.timeout_ms = timeout_ms, .queue_depth = 4, .block_bytes = 65536};
}

// Does something before the block of a number, counted over all shards.
class Interruption : public RateLimiterClock {
 public:
  Interruption(int block, std::function<void()> strike) : block_(block), strike_(std::move(strike)) {}
  Clock::time_point now() override {
    if (blocks_++ == block_) strike_();
    return Clock::now();
  }
  void sleep(Clock::time_point, const std::stop_token&) override {}
  bool struck() const { return blocks_ > block_; }

 private:
  const int block_;
  int blocks_ = 0;
  const std::function<void()> strike_;
};

constexpr std::int64_t large = 50'000;  // elements: 1.1 MB and 17 blocks in each shard

void write_interrupted(FileSystem& files, CheckpointId checkpoint, RateLimiterClock& clock) {
  RateLimiter rate_limiter(UINT64_MAX, clock);
  CheckpointWriter writer(files, "job", "node", rate_limiter);
  for (const std::string& shard : two_shards) writer.write(sample(shard, checkpoint, large).piece);
  writer.commit(checkpoint, 2, two_shards);
}

TEST(Nfs, ReadsBackCheckpointsOfAllSizes) {
  const NfsServer server;
  for (const std::size_t block_bytes : {std::size_t{1} << 16, std::size_t{1} << 20, std::size_t{4} << 20}) {
    FileSystemOptions with = options();
    with.block_bytes = block_bytes;
    const auto files = open_file_system(server.location(), with);
    for (const std::int64_t elements : {0, 1, 4096, 300'000}) {
      const CheckpointRecord stored = write_checkpoint(*files, {1, elements}, elements);
      EXPECT_TRUE(holds_what_was_written(*files, stored, elements)) << elements;
    }
  }
  // And they are what a program finds that has the directory itself.
  const auto local = open_file_system(server.exported(), options());
  EXPECT_EQ(find_complete_checkpoint(*local, "job").stored->checkpoint, CheckpointId(1, 300'000));
  EXPECT_TRUE(find_complete_checkpoint(*local, "job").problems.empty());
}

TEST(Nfs, ReadsRangesAndPrunesCheckpoints) {
  const NfsServer server;
  const auto files = open_file_system(server.location(), options());
  const auto whole = sample("rank0", {1, 3}, large).bytes;
  for (std::int64_t k = 1; k <= 3; ++k) write_checkpoint(*files, {1, k}, large);
  EXPECT_EQ(prune_checkpoints(*files, "job", {.keep_last = 1}).removed.size(), 2u);
  const StoredCheckpoint newest = list_checkpoints(*files, "job").front();
  ShardReader reader(*files, *newest.record, "rank0");
  std::vector<std::byte> part(100'000);
  reader.read({77'777, part.size()}, part.data());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 77'777));
  EXPECT_GT(files->free_bytes(), 0u);
}

TEST(Nfs, SeveralWritersFillOneFileAndTakenNamesStay) {
  const NfsServer server;
  const auto files = open_file_system(server.location(), options());
  const auto others = open_file_system(server.location(), options());
  expect_several_fill_one_file(*files, *others);
  EXPECT_THAT(refusal(CKPT_ERR_SYSTEM,
                      [&] { files->link("job/step-00000007/rank0.1.json", "job/step-00000007/manifest.json"); }),
              HasSubstr("File exists"));
  EXPECT_GT(files->modified_s("job/step-00000007/manifest.json").value_or(0), 1'700'000'000);
  EXPECT_FALSE(files->modified_s("job/y"));
}

TEST(Nfs, FailuresNameTheOperationThePathAndTheReason) {
  const NfsServer server;
  const auto files = open_file_system(server.location(), options());
  const std::string root = "nfs://127.0.0.1/ckpt";
  EXPECT_EQ(refusal(CKPT_ERR_SYSTEM, [&] { files->open("x"); }),
            "cannot open " + root + "/x: No such file or directory");
  EXPECT_THAT(refusal(CKPT_ERR_SYSTEM, [&] { files->list("x"); }), HasSubstr("cannot list " + root + "/x"));
  EXPECT_THAT(refusal(CKPT_ERR_SYSTEM, [&] { files->rename("x", "y"); }), HasSubstr("No such file"));
  EXPECT_THAT(refusal(CKPT_ERR_SYSTEM, [&] { files->remove("x"); }), HasSubstr("No such file"));
  EXPECT_FALSE(files->file_size("x"));
  files->make_directory("job");
  files->make_directory("job");
  files->create("job/x", 0);
  EXPECT_THAT(refusal(CKPT_ERR_SYSTEM, [&] { files->create("job/x", 0); }), HasSubstr("File exists"));
  EXPECT_THAT(refusal(CKPT_ERR_SYSTEM, [&] { files->remove_directory("job"); }), HasSubstr("not empty"));
  EXPECT_FALSE(files->list("job").front().is_directory);
  EXPECT_TRUE(files->list("").front().is_directory);
}

// Killed before each of several blocks of the write: it fails with a sentence, and once the server is back, the same
// file system finds the old checkpoint and writes the new one.
TEST(Nfs, ServerKilledDuringAWriteKeepsTheOldCheckpoint) {
  NfsServer server;
  const auto files = open_file_system(server.location(), options());
  write_checkpoint(*files, {1, 1}, large);
  int cuts = 0;
  for (const int block : {0, 1, 9, 18, 30}) {
    Interruption killer(block, [&] { server.kill(); });
    EXPECT_THAT(refusal(CKPT_ERR_SYSTEM,
                        [&] {
                          write_interrupted(*files, {1, 2 + cuts}, killer);
                        }),
                HasSubstr("nfs://127.0.0.1/ckpt"))
        << block;
    EXPECT_TRUE(killer.struck());
    EXPECT_THAT(refusal(CKPT_ERR_SYSTEM, [&] { find_complete_checkpoint(*files, "job"); }),
                HasSubstr("the server does not answer"));
    server.start();
    const NewestComplete found = find_complete_checkpoint(*files, "job");
    ASSERT_TRUE(found.stored);
    EXPECT_EQ(found.stored->checkpoint, CheckpointId(1, 1));
    EXPECT_TRUE(holds_what_was_written(*files, *found.stored, large));
    ++cuts;
  }
  EXPECT_EQ(cuts, 5);
  for (int cut = 0; cut < cuts; ++cut)
    EXPECT_TRUE(holds_what_was_written(*files, write_checkpoint(*files, {1, 2 + cut}, large), large));
}

TEST(Nfs, AbandonsAHungServerAtTheDeadlineAndUsesItAgainLater) {
  NfsServer server;
  const auto files = open_file_system(server.location(), options(300));
  write_checkpoint(*files, {1, 1}, 100);
  Interruption stopper(9, [&] { server.stop(); });
  EXPECT_THAT(refusal(CKPT_ERR_TIMEOUT,
                      [&] {
                        write_interrupted(*files, {1, 2}, stopper);
                      }),
              HasSubstr("did not answer in time"));
  EXPECT_THAT(refusal(CKPT_ERR_TIMEOUT, [&] { find_complete_checkpoint(*files, "job"); }),
              HasSubstr("did not answer in time"));
  server.resume();
  const auto patient = open_file_system(server.location(), options());
  EXPECT_EQ(find_complete_checkpoint(*patient, "job").stored->checkpoint, CheckpointId(1, 1));
  const CheckpointRecord stored = write_checkpoint(*patient, {1, 2}, large);
  EXPECT_TRUE(holds_what_was_written(*patient, stored, large));
}

TEST(Nfs, AbandonsAServerThatHangsDuringAReadAtTheDeadline) {
  NfsServer server;
  const auto files = open_file_system(server.location(), options(300));
  const CheckpointRecord stored = write_checkpoint(*files, {1, 1}, large);
  ShardReader reader(*files, stored, "rank0");
  std::vector<std::byte> bytes(reader.manifest().length_bytes);
  server.stop();
  EXPECT_THAT(refusal(CKPT_ERR_TIMEOUT,
                      [&] {
                        reader.read({0, bytes.size()}, bytes.data());
                      }),
              HasSubstr("did not answer in time"));
  server.kill();
  server.start();
  const auto again = open_file_system(server.location(), options());
  EXPECT_TRUE(holds_what_was_written(*again, stored, large));
}

TEST(Nfs, ReportsAFullServerAndKeepsTheOldCheckpoint) {
  const NfsServer server("6m");
  const auto files = open_file_system(server.location(), options());
  write_checkpoint(*files, {1, 1}, large);
  const auto before = files->list("job/step-00000001").size();
  EXPECT_THAT(refusal(CKPT_ERR_NO_SPACE, [&] { write_checkpoint(*files, {1, 2}, 300'000); }), HasSubstr("is full"));
  const NewestComplete found = find_complete_checkpoint(*files, "job");
  ASSERT_TRUE(found.stored);
  EXPECT_TRUE(holds_what_was_written(*files, *found.stored, large));
  EXPECT_EQ(files->list("job/step-00000001").size(), before);
  for (const DirectoryEntry& entry : files->list("job/step-00000002")) EXPECT_FALSE(entry.name.ends_with(".part"));
  EXPECT_EQ(write_checkpoint(*files, {1, 2}, 100).checkpoint, CheckpointId(1, 2));
}

TEST(Nfs, StopEndsAWaitForAHungServer) {
  NfsServer server;
  std::stop_source stop;
  FileSystemOptions with = options();
  with.stop = stop.get_token();
  const auto files = open_file_system(server.location(), with);
  files->make_directory("job");
  server.stop();
  std::thread stopper([&] { stop.request_stop(); });
  EXPECT_THAT(refusal(CKPT_DISCARDED, [&] { files->list("job"); }), HasSubstr("cancelled"));
  stopper.join();
}

TEST(Nfs, WriteQueueSurvivesAServerThatHangsAndDies) {
  NfsServer server;
  WriteQueueOptions with;
  with.job = "job";
  with.node = "node";
  with.files = options(300);
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<WriteOutcome> outcomes;
  const auto done = [&](const WriteOutcome& outcome) {
    const std::lock_guard lock(mutex);
    outcomes.push_back(outcome);
    changed.notify_all();
  };
  WriteQueue queue([&](const FileSystemOptions& at) { return open_file_system(server.location(), at); }, with);
  const auto write = [&](std::int64_t k) {
    queue.write({1, k}, {sample("rank0", {1, k}, large).piece, sample("rank1", {1, k}, large).piece}, done);
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(50), [&] { return outcomes.size() >= std::size_t(k); }));
    return outcomes.back();
  };
  EXPECT_EQ(write(1).status, CKPT_OK);
  server.stop();
  EXPECT_EQ(write(2).status, CKPT_ERR_TIMEOUT);
  server.kill();
  EXPECT_EQ(write(3).kind, WriteOutcome::Kind::failed);
  server.start();
  EXPECT_EQ(write(4).status, CKPT_OK) << outcomes.back().sentence;
}

TEST(Nfs, ReportsAServerThatDoesNotAnswer) {
  const auto files = open_file_system("nfs://127.0.0.1/ckpt?nfsport=1&mountport=1", options());
  EXPECT_THAT(refusal(CKPT_ERR_SYSTEM, [&] { files->list(""); }),
              HasSubstr("cannot connect to nfs://127.0.0.1/ckpt?nfsport=1&mountport=1: the server does not answer"));
  const NfsServer server;
  std::string wrong = server.location();
  wrong.replace(wrong.find("/ckpt"), 5, "/nope");
  EXPECT_THAT(refusal(CKPT_ERR_SYSTEM, [&] { open_file_system(wrong, options())->list(""); }),
              HasSubstr("cannot connect to nfs://127.0.0.1/nope"));
  wrong = server.location();
  wrong.replace(wrong.find("/ckpt"), 5, "/ckpt/mount");
  const auto missing = open_file_system(wrong, options());
  for (const auto& call : std::vector<std::function<void()>>{[&] { list_checkpoints(*missing, "job"); },
                                                             [&] {
                                                               write_checkpoint(*missing, {1, 1}, 3);
                                                             }})
    EXPECT_THAT(
        refusal(CKPT_ERR_SYSTEM, call),
        testing::AllOf(HasSubstr("/ckpt/mount"), HasSubstr("check that the server runs and that the directory")));
  EXPECT_THAT(refusal(CKPT_ERR_INVALID, [&] { open_file_system(server.location() + "&version=4", options()); }),
              HasSubstr("asks for NFS version 4"));
  EXPECT_THAT(refusal(CKPT_ERR_INVALID, [&] { open_file_system("nfs://", options()); }),
              HasSubstr("is not nfs://server/export/path"));
}

}  // namespace
}  // namespace ckpt::persist::test
