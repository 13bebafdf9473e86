#include "persist/checkpoint_source.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "memory_file_system.hpp"
#include "persist/read_queue.hpp"
#include "persist/storage_source.hpp"
#include "support.hpp"

namespace ckpt::persist::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Storage : public testing::Test {
 protected:
  std::shared_ptr<Disk> disk_ = std::make_shared<Disk>();
  MemoryFileSystem files_{disk_};

  std::unique_ptr<CheckpointSource> storage() const {
    return std::make_unique<StorageSource>(std::make_unique<MemoryFileSystem>(disk_), "job");
  }
};

TEST_F(Storage, ReportsSkippedCheckpoints) {
  write_checkpoint(files_, {1, 4});
  writer_on(files_).write(sample("rank0", {1, 6}).piece);
  const Listing listing = storage()->list();
  EXPECT_EQ(listing.offers.size(), 1u);
  EXPECT_THAT(listing.problems, ElementsAre(HasSubstr("step-00000006 has no manifest.json")));
}

// The next incarnation of a job is to be newer than whatever any other left: it never meets files with its own name.
TEST_F(Storage, ReportsTheNewestIncarnationThatLeftFiles) {
  const auto latest_incarnation = [&] { return storage()->list().newest_incarnation; };
  EXPECT_EQ(latest_incarnation(), 0u);
  write_checkpoint(files_, {2, 5}, 3);
  writer_on(files_).write(sample("rank0", {1, 9}, 3).piece);
  EXPECT_EQ(latest_incarnation(), 2u);
  disk_->put("job/step-00000005/rank0.3.safetensors.0123456789abcdef.part",
             "of a later incarnation, beside a whole checkpoint");
  EXPECT_EQ(latest_incarnation(), 3u);
  disk_->put("job/step-00000009/model.5.safetensors.parts", "in a checkpoint that was never finished");
  EXPECT_EQ(latest_incarnation(), 5u);
  const CheckpointRecord other = write_checkpoint(files_, {7, 20}, 3);
  for (const std::string& path : disk_->files())
    if (path.starts_with("job/step-00000020/") && !path.ends_with(manifest_name)) disk_->erase(path);
  EXPECT_EQ(latest_incarnation(), 7u);
  EXPECT_EQ(storage()->list().offers.size(), 1u);
  disk_->put("job/step-00000005/notes.txt", "x");
  disk_->put("job/step-00000005/rank0.16777216.json", "no incarnation has this number");
  disk_->put("job/step-00000005/rank0.16777215.zstd", "not ours");
  EXPECT_EQ(latest_incarnation(), 7u);
}

// Anybody who can write there can leave a name. It must not use up the numbers of incarnations, nor spoil a checkpoint.
TEST_F(Storage, ReportsAndIgnoresNamesFarBeyondFinishedIncarnations) {
  write_checkpoint(files_, {2, 5}, 3);
  disk_->put("job/step-00000005/rank0.16777215.safetensors", "");
  disk_->put("job/step-00000005/rank0.3.safetensors", "of a later incarnation");
  writer_on(files_).write(sample("rank0", {1, 6}, 3).piece);
  disk_->put("job/step-00000006/rank0.16777214.safetensors", "");
  const Listing listing = storage()->list();
  EXPECT_EQ(listing.newest_incarnation, 3u);
  EXPECT_TRUE(listing.knows_incarnations);
  EXPECT_EQ(listing.offers.size(), 1u);
  EXPECT_THAT(listing.remarks,
              UnorderedElementsAre(HasSubstr("rank0.16777215.safetensors names an incarnation far above"),
                                   HasSubstr("rank0.16777214.safetensors")));
}

TEST_F(Storage, IgnoresDistantIncarnationNamesIfNoneIsFinished) {
  writer_on(files_).write(sample("rank0", {1, 5}, 3).piece);
  disk_->put("job/step-00000005/rank0.16777215.safetensors", "");
  EXPECT_EQ(storage()->list().newest_incarnation, 1u);
  disk_->put("job/step-00000005/rank0.7.safetensors", "");
  EXPECT_EQ(storage()->list().newest_incarnation, 7u);
}

// Only what may be newer than all that is offered keeps a job from going on with that.
TEST_F(Storage, WithheldOlderCheckpointIsAnOrdinaryProblem) {
  for (const CheckpointId checkpoint : {CheckpointId(2, 1), CheckpointId(2, 3), CheckpointId(2, 2)})
    write_checkpoint(files_, checkpoint, 3);
  const auto withheld_where = [&](const std::string& failing, const std::string& at) {
    disk_->fault = [=](std::size_t, const std::string& operation, const std::string& path) {
      return operation == failing && path.starts_with(at) ? EIO : 0;
    };
    const Listing listing = storage()->list();
    EXPECT_EQ(listing.problems.size() + listing.withheld.size(), 1u);
    EXPECT_EQ(listing.offers.size(), 2u);
    return !listing.withheld.empty();
  };
  EXPECT_FALSE(withheld_where("stat", "job/step-00000002"));
  EXPECT_TRUE(withheld_where("list", "job/step-00000002"));  // anything may lie there
  EXPECT_TRUE(withheld_where("stat", "job/step-00000003"));
  disk_->put("job/step-00000002/rank0.3.json", "of a later incarnation");
  EXPECT_TRUE(withheld_where("stat", "job/step-00000002"));
}

TEST_F(Storage, ReportsACheckpointRemovedDuringReadingAsLost) {
  write_checkpoint(files_, {1, 4});
  const auto source = storage();
  source->list();
  remove_checkpoint(files_, "job", 4);
  EXPECT_THROW(source->manifest("rank0", {1, 4}), Failure);
  EXPECT_THROW(storage()->manifest("rank0", {1, 4}), Failure);
}

// Waits for what a queue reports.
template <class T>
class Answer {
 public:
  void give(T value) {
    value_ = std::move(value);
    given_.count_down();
  }
  T take() {
    given_.wait();
    return std::move(value_);
  }

 private:
  T value_{};
  std::latch given_{1};
};

class ReadingInTheBackground : public Storage {
 protected:
  CheckpointSourceFactory factory() {
    return [disk = disk_](std::stop_token stop) {
      FileSystemOptions options{.queue_depth = 4, .block_bytes = 65536};
      options.stop = std::move(stop);
      return std::make_unique<StorageSource>(std::make_unique<MemoryFileSystem>(disk, options), "job");
    };
  }
};

TEST_F(ReadingInTheBackground, SpreadsALargeReadOverThreadsAndReportsItOnce) {
  const auto layout = arena::pack({tensor("w", CKPT_U8, {70'000'001})});
  const Sample large = sample("large", {1, 1}, layout);
  CheckpointWriter writer = writer_on(files_);
  writer.write(large.piece);
  writer.commit({1, 1}, 2, {"large"});
  ReadQueue queue(factory(), {.threads = 3});
  Answer<Listing> listed;
  queue.list([&](const ReadOutcome& outcome, Listing found) {
    EXPECT_TRUE(outcome.ok()) << outcome.sentence;
    listed.give(std::move(found));
  });
  const Listing listing = listed.take();
  EXPECT_THAT(listing.problems, testing::IsEmpty());
  ASSERT_EQ(listing.offers.size(), 1u);
  EXPECT_EQ(listing.offers.front().checkpoint, CheckpointId(1, 1));
  Answer<arena::Manifest> described;
  queue.manifest("large", {1, 1}, [&](const ReadOutcome&, arena::Manifest found) { described.give(std::move(found)); });
  EXPECT_EQ(described.take(), *large.piece.manifest);
  for (const ByteRange range : {ByteRange{0, large.bytes.size()}, {12'345, 60'000'000}, {5, 0}}) {
    std::vector<std::byte> bytes(range.size_bytes);
    Answer<ReadOutcome> read;
    queue.read("large", {1, 1}, range, bytes.data(), [&](const ReadOutcome& outcome) { read.give(outcome); });
    EXPECT_TRUE(read.take().ok());
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), large.bytes.begin() + range.offset_bytes));
  }
}

TEST_F(ReadingInTheBackground, ReportsAFailureWithItsMessage) {
  write_checkpoint(files_, {1, 1});
  disk_->bytes("job/step-00000001/rank0.1.safetensors")[5000] ^= 1;
  ReadQueue queue(factory(), {});
  std::vector<std::byte> bytes(100);
  Answer<ReadOutcome> read;
  queue.read("rank0", {1, 1}, {0, 100}, bytes.data(), [&](const ReadOutcome& outcome) { read.give(outcome); });
  const ReadOutcome outcome = read.take();
  EXPECT_EQ(outcome.status, CKPT_ERR_CORRUPT);
  EXPECT_THAT(outcome.sentence, HasSubstr("leaf 0"));
}

// A queue of one thread that is held in its first operation, a read.
class ReadingOneByOne : public ReadingInTheBackground {
 protected:
  ReadingOneByOne() {
    write_checkpoint(files_, {1, 1});
    disk_->fault = [this](std::size_t, const std::string& operation, const std::string&) {
      if (operation == "read" && hold_.exchange(false)) {
        held_.count_down();
        release_.wait();
      }
      return 0;
    };
  }
  // Puts down its name when it has ended.
  auto ends(const std::string& name) {
    return [this, name](const ReadOutcome& outcome, const auto&...) {
      const std::lock_guard lock(mutex_);
      ended_.push_back(name + (outcome.ok() ? "" : ": " + std::to_string(outcome.status)));
      left_.count_down();
    };
  }
  void read(ReadQueue& queue, const std::string& name, const std::stop_token& stop = {}) {
    queue.read("rank0", {1, 1}, {0, 100}, bytes_.data(), ends(name), stop);
  }
  std::vector<std::string> ended() {
    left_.wait();
    return ended_;
  }

  std::atomic<bool> hold_{true};
  std::latch held_{1}, release_{1}, left_{4};
  std::mutex mutex_;
  std::vector<std::string> ended_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(100);
};

TEST_F(ReadingOneByOne, ListGoesBeforeWaitingReads) {
  ReadQueue queue(factory(), {.threads = 1});
  read(queue, "running");
  held_.wait();
  read(queue, "waiting");
  queue.list(ends("first list"));
  queue.list(ends("second list"));
  release_.count_down();
  EXPECT_THAT(ended(), ElementsAre("running", "first list", "second list", "waiting"));
}

TEST_F(ReadingOneByOne, StopEndsOnlyItsOwnWaitingRead) {
  ReadQueue queue(factory(), {.threads = 1});
  std::stop_source stop;
  read(queue, "running", stop.get_token());
  held_.wait();
  read(queue, "stopped", stop.get_token());
  read(queue, "another");
  queue.list(ends("list"));
  stop.request_stop();
  release_.count_down();
  EXPECT_THAT(ended(), ElementsAre("running", "list", "stopped: " + std::to_string(CKPT_DISCARDED), "another"));
}

// Of a read in several parts one is under way when it is stopped: its bytes come, the others' do not, and only then it
// has ended.
TEST_F(ReadingInTheBackground, StoppedReadEndsOnceAfterItsCurrentPart) {
  const auto layout = arena::pack({tensor("w", CKPT_U8, {70'000'001})});
  const Sample large = sample("large", {1, 1}, layout);
  CheckpointWriter writer = writer_on(files_);
  writer.write(large.piece);
  writer.commit({1, 1}, 2, {"large"});
  std::stop_source stop;
  std::latch busy(1), release(1);
  std::atomic<int> ended{0};
  disk_->fault = [&](std::size_t, const std::string& operation, const std::string& path) {
    if (operation == "open" && path.ends_with(data_suffix)) stop.request_stop();
    return 0;
  };
  // Two threads, so that there are two parts; one of them has something else to do.
  std::atomic<bool> hold{true};
  const auto make_source = [&, make = factory()](std::stop_token token) {
    if (hold.exchange(false)) {
      busy.count_down();
      release.wait();
    }
    return make(std::move(token));
  };
  ReadQueue queue(make_source, {.threads = 2});
  queue.list([](const ReadOutcome&, const Listing&) {});
  busy.wait();
  std::vector<std::byte> bytes(large.bytes.size());
  Answer<ReadOutcome> read;
  queue.read(
      "large", {1, 1}, {0, bytes.size()}, bytes.data(),
      [&](const ReadOutcome& outcome) {
        ++ended;
        read.give(outcome);
      },
      stop.get_token());
  EXPECT_EQ(read.take().status, CKPT_DISCARDED);
  release.count_down();
  const std::size_t first = 30'000'000;
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + first, large.bytes.begin()));
  EXPECT_TRUE(std::all_of(bytes.end() - first, bytes.end(), [](std::byte byte) { return byte == std::byte{}; }));
  EXPECT_EQ(ended, 1);
}

TEST_F(ReadingInTheBackground, CancelEndsWaitingRequestsAndServesLaterOnes) {
  write_checkpoint(files_, {1, 1});
  std::latch held(1), release(1);
  std::atomic<bool> hold{true};
  disk_->fault = [&](std::size_t, const std::string& operation, const std::string&) {
    if (operation == "list" && hold.exchange(false)) {
      held.count_down();
      release.wait();
    }
    return 0;
  };
  ReadQueue queue(factory(), {.threads = 1, .requests_max = 2});
  Answer<ReadOutcome> running, waiting, refused, later;
  queue.list([&](const ReadOutcome& outcome, const Listing&) { running.give(outcome); });
  held.wait();
  queue.list([&](const ReadOutcome& outcome, const Listing&) { waiting.give(outcome); });
  queue.list([](const ReadOutcome&, const Listing&) {});
  queue.list([&](const ReadOutcome& outcome, const Listing&) { refused.give(outcome); });
  EXPECT_EQ(refused.take().status, CKPT_ERR_NO_SPACE);
  queue.cancel();
  EXPECT_EQ(waiting.take().status, CKPT_DISCARDED);
  queue.list([&](const ReadOutcome& outcome, const Listing&) { later.give(outcome); });
  release.count_down();
  EXPECT_EQ(running.take().status, CKPT_DISCARDED);
  EXPECT_TRUE(later.take().ok());
}

}  // namespace
}  // namespace ckpt::persist::test
