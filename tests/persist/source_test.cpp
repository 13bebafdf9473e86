#include "persist/source.hpp"

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

  std::unique_ptr<Source> storage() const {
    return std::make_unique<StorageSource>(std::make_unique<MemoryFileSystem>(disk_), "job");
  }
};

TEST_F(Storage, TellsWhatItSkips) {
  write_step(files_, {1, 4});
  writer_on(files_).write(sample("rank0", {1, 6}).piece);
  const Listing listing = storage()->list();
  EXPECT_EQ(listing.offers.size(), 1u);
  EXPECT_THAT(listing.problems, ElementsAre(HasSubstr("step-00000006 has no manifest.json")));
}

TEST_F(Storage, AStepRemovedMeanwhileIsALossAndNotACrash) {
  write_step(files_, {1, 4});
  const auto source = storage();
  source->list();
  remove_step(files_, "job", 4);
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
  SourceFactory factory() {
    return [disk = disk_](std::stop_token stop) {
      FileSystemOptions options{.queue_depth = 4, .block_bytes = 65536};
      options.stop = std::move(stop);
      return std::make_unique<StorageSource>(std::make_unique<MemoryFileSystem>(disk, options), "job");
    };
  }
};

TEST_F(ReadingInTheBackground, ALargeReadIsSpreadOverThreadsAndReportedOnce) {
  const auto layout = arena::pack({tensor("w", CKPT_U8, {70'000'001})});
  const Sample large = sample("large", {1, 1}, layout);
  StepWriter writer = writer_on(files_);
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
  EXPECT_EQ(listing.offers.front().version, Version(1, 1));
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

TEST_F(ReadingInTheBackground, AFailureIsReportedWithItsSentence) {
  write_step(files_, {1, 1});
  disk_->bytes("job/step-00000001/rank0.1.safetensors")[5000] ^= 1;
  ReadQueue queue(factory(), {});
  std::vector<std::byte> bytes(100);
  Answer<ReadOutcome> read;
  queue.read("rank0", {1, 1}, {0, 100}, bytes.data(), [&](const ReadOutcome& outcome) { read.give(outcome); });
  const ReadOutcome outcome = read.take();
  EXPECT_EQ(outcome.status, CKPT_ERR_CORRUPT);
  EXPECT_THAT(outcome.sentence, HasSubstr("leaf 0"));
}

TEST_F(ReadingInTheBackground, ACancelEndsWhatWaitsAndLaterRequestsAreServed) {
  write_step(files_, {1, 1});
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
  EXPECT_EQ(waiting.take().status, CKPT_ERR_DISCARDED);
  queue.list([&](const ReadOutcome& outcome, const Listing&) { later.give(outcome); });
  release.count_down();
  EXPECT_EQ(running.take().status, CKPT_ERR_DISCARDED);
  EXPECT_TRUE(later.take().ok());
}

}  // namespace
}  // namespace ckpt::persist::test
