#include "persist/write_queue.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>

#include "memory_file_system.hpp"
#include "support.hpp"

namespace ckpt::persist::test {
namespace {

using testing::HasSubstr;
using Kind = WriteOutcome::Kind;

// Outcomes in the order in which they came.
class Outcomes {
 public:
  WriteQueue::Done collect() {
    return [this](const WriteOutcome& outcome) {
      const std::lock_guard lock(mutex_);
      outcomes_.push_back(outcome);
      changed_.notify_all();
    };
  }
  std::vector<WriteOutcome> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(50), [&] { return outcomes_.size() >= count; }));
    return outcomes_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<WriteOutcome> outcomes_;
};

class Writing : public testing::Test {
 protected:
  static WriteQueueOptions options() {
    WriteQueueOptions options;
    options.job = "job";
    options.node = "node-a";
    options.files = {.queue_depth = 4, .block_bytes = 65536};
    return options;
  }
  FileSystemFactory factory() {
    return [this](const FileSystemOptions& options) {
      ++opened_;
      return std::make_unique<MemoryFileSystem>(disk_, options);
    };
  }
  // The first create waits until the gate opens.
  void hold_first_write() {
    disk_->fault = [this](std::size_t, const std::string& operation, const std::string&) {
      if (operation == "create" && hold_.exchange(false)) {
        held_.count_down();
        release_.wait();
      }
      return 0;
    };
  }
  static std::vector<Piece> pieces(CheckpointId checkpoint) {
    return {sample("rank0", checkpoint).piece, sample("rank1", checkpoint).piece};
  }

  std::shared_ptr<Disk> disk_ = std::make_shared<Disk>();
  std::atomic<int> opened_{0};
  std::atomic<bool> hold_{true};
  std::latch held_{1}, release_{1};
  Outcomes outcomes_;
};

TEST_F(Writing, WritesCommitsAndFindsACheckpoint) {
  WriteQueue queue(factory(), options());
  queue.write({1, 7}, pieces({1, 7}), outcomes_.collect());
  const WriteOutcome written = outcomes_.wait_for(1)[0];
  EXPECT_EQ(written.kind, Kind::done);
  EXPECT_EQ(written.shards.size(), 2u);
  queue.commit({1, 7}, 2, two_shards, {}, outcomes_.collect());
  EXPECT_EQ(outcomes_.wait_for(2)[1].kind, Kind::done);
  MemoryFileSystem files(disk_);
  const NewestComplete found = find_complete_checkpoint(files, "job");
  ASSERT_TRUE(found.stored);
  EXPECT_TRUE(holds_what_was_written(files, *found.stored));
  const WriteCounters counters = queue.counters();
  EXPECT_EQ(counters.written, 1u);
  EXPECT_EQ(counters.committed, 1u);
  EXPECT_EQ(counters.bytes, written.bytes);
}

TEST_F(Writing, KeepsOnlyTheNewestWaitingCheckpointWhileStorageIsSlow) {
  hold_first_write();
  WriteQueue queue(factory(), options());
  queue.write({1, 1}, pieces({1, 1}), outcomes_.collect());
  held_.wait();
  for (const std::int64_t k : {2, 3, 5, 4}) queue.write({1, k}, pieces({1, k}), outcomes_.collect());
  release_.count_down();
  const auto outcomes = outcomes_.wait_for(5);
  std::map<std::int64_t, Kind> by_iteration;
  for (const WriteOutcome& outcome : outcomes) by_iteration[outcome.checkpoint.iteration()] = outcome.kind;
  EXPECT_EQ(by_iteration,
            (std::map<std::int64_t, Kind>{
                {1, Kind::done}, {2, Kind::skipped}, {3, Kind::skipped}, {4, Kind::skipped}, {5, Kind::done}}));
  EXPECT_EQ(queue.counters().skipped, 3u);
}

TEST_F(Writing, HoldsAPiecesMemoryUntilItsOutcome) {
  hold_first_write();
  WriteQueue queue(factory(), options());
  Sample first = sample("rank0", {1, 1}), second = sample("rank0", {1, 2});
  const std::weak_ptr<const void> first_memory = first.piece.owner, second_memory = second.piece.owner;
  std::latch ended(2);
  std::atomic<bool> let_go{true};
  const auto check = [&](const std::weak_ptr<const void>& memory) {
    return [&, memory](const WriteOutcome&) {
      let_go = let_go && memory.expired();
      ended.count_down();
    };
  };
  queue.write({1, 1}, {std::move(first.piece)}, check(first_memory));
  first = {};
  held_.wait();
  EXPECT_FALSE(first_memory.expired());
  queue.write({1, 2}, {std::move(second.piece)}, check(second_memory));
  second = {};
  EXPECT_FALSE(second_memory.expired());
  release_.count_down();
  ended.wait();
  EXPECT_TRUE(let_go);
}

TEST_F(Writing, HungStorageFailsTheCheckpointAndLaterOnesAreTried) {
  std::atomic<bool> hangs{true};
  disk_->fault = [&](std::size_t, const std::string&, const std::string&) { return hangs ? ETIMEDOUT : 0; };
  WriteQueue queue(factory(), options());
  queue.write({1, 1}, pieces({1, 1}), outcomes_.collect());
  const WriteOutcome failed = outcomes_.wait_for(1)[0];
  EXPECT_EQ(failed.kind, Kind::failed);
  EXPECT_EQ(failed.status, CKPT_ERR_TIMEOUT);
  EXPECT_THAT(failed.sentence, HasSubstr("did not answer in time"));
  hangs = false;
  queue.write({1, 2}, pieces({1, 2}), outcomes_.collect());
  EXPECT_EQ(outcomes_.wait_for(2)[1].kind, Kind::done);
  EXPECT_EQ(queue.counters().failed, 1u);
}

TEST_F(Writing, CommitDoesNotWaitForTheNextCheckpointsBytes) {
  WriteQueue queue(factory(), options());
  queue.write({1, 1}, pieces({1, 1}), outcomes_.collect());
  outcomes_.wait_for(1);
  disk_->fault = [this](std::size_t, const std::string& operation, const std::string& path) {
    if (operation == "create" && path.find("safetensors") != path.npos && hold_.exchange(false)) held_.count_down();
    return 0;
  };
  auto clock = std::make_shared<RateLimiterClock>();
  WriteQueueOptions slow = options();
  slow.bytes_per_second = 1;  // years
  WriteQueue slow_queue(factory(), slow, clock);
  slow_queue.write({1, 2}, pieces({1, 2}), outcomes_.collect());
  held_.wait();
  slow_queue.commit({1, 1}, 2, two_shards, {}, outcomes_.collect());
  EXPECT_EQ(outcomes_.wait_for(2)[1].checkpoint, CheckpointId(1, 1));
  slow_queue.cancel();
  const WriteOutcome cancelled = outcomes_.wait_for(3)[2];
  EXPECT_EQ(cancelled.checkpoint, CheckpointId(1, 2));
  EXPECT_EQ(cancelled.status, CKPT_DISCARDED);
}

TEST_F(Writing, ContinuesWithAFreshFileSystemAfterACancel) {
  hold_first_write();
  WriteQueue queue(factory(), options());
  queue.write({1, 1}, pieces({1, 1}), outcomes_.collect());
  held_.wait();
  queue.write({1, 2}, pieces({1, 2}), outcomes_.collect());
  queue.cancel();
  EXPECT_EQ(outcomes_.wait_for(1)[0].checkpoint, CheckpointId(1, 2));
  release_.count_down();
  EXPECT_EQ(outcomes_.wait_for(2)[1].status, CKPT_DISCARDED);
  queue.write({1, 3}, pieces({1, 3}), outcomes_.collect());
  EXPECT_EQ(outcomes_.wait_for(3)[2].kind, Kind::done);
  EXPECT_EQ(opened_, 2);
}

TEST_F(Writing, DestructorCancelsOngoingWrites) {
  {
    WriteQueueOptions slow = options();
    slow.bytes_per_second = 1;
    WriteQueue queue(factory(), slow);
    queue.write({1, 1}, pieces({1, 1}), outcomes_.collect());
    queue.write({1, 2}, pieces({1, 2}), outcomes_.collect());
  }
  EXPECT_EQ(outcomes_.wait_for(2).size(), 2u);
  EXPECT_FALSE(disk_->exists("job/step-00000001/rank0.1.safetensors"));
}

TEST_F(Writing, CommitRemovesCheckpointsBeyondRetention) {
  WriteQueueOptions keep_one = options();
  keep_one.retention.keep_last = 1;
  WriteQueue queue(factory(), keep_one);
  std::size_t reported = 0;
  for (std::int64_t k = 1; k <= 3; ++k) {
    queue.write({1, k}, pieces({1, k}), outcomes_.collect());
    outcomes_.wait_for(++reported);
    queue.commit({1, k}, 2, two_shards, {}, outcomes_.collect());
    outcomes_.wait_for(++reported);
  }
  MemoryFileSystem files(disk_);
  const auto stored_checkpoints = list_checkpoints(files, "job");
  ASSERT_EQ(stored_checkpoints.size(), 1u);
  EXPECT_EQ(stored_checkpoints.front().iteration, 3);
}

TEST_F(Writing, CommitKeepsGoodCheckpointsInsteadOfDamagedOnes) {
  MemoryFileSystem files(disk_);
  for (const std::int64_t k : {1, 2, 3}) write_checkpoint(files, {1, k}, 3);
  WriteQueueOptions keep_two = options();
  keep_two.retention.keep_last = 2;
  WriteQueue queue(factory(), keep_two);
  queue.write({1, 4}, pieces({1, 4}), outcomes_.collect());
  outcomes_.wait_for(1);
  queue.commit({1, 4}, 2, two_shards, {{1, 2}, {1, 3}}, outcomes_.collect());
  EXPECT_EQ(outcomes_.wait_for(2)[1].sentence, "");
  std::vector<std::int64_t> left;
  for (const StoredCheckpoint& stored : list_checkpoints(files, "job")) left.push_back(stored.iteration);
  EXPECT_THAT(left, testing::ElementsAre(4, 1));
}

TEST_F(Writing, CommitOfAnIncompleteCheckpointFails) {
  WriteQueue queue(factory(), options());
  queue.commit({1, 1}, 2, two_shards, {}, outcomes_.collect());
  const WriteOutcome failed = outcomes_.wait_for(1)[0];
  EXPECT_EQ(failed.status, CKPT_ERR_LOST);
  EXPECT_THAT(failed.sentence, HasSubstr("rank0.1.json is missing"));
}

TEST_F(Writing, HungWriteHoldsABoundedAmountOfMemory) {
  disk_->fault = [](std::size_t, const std::string& operation, const std::string&) {
    return operation == "write" ? ETIMEDOUT : 0;
  };
  WriteQueue queue(factory(), options());
  std::vector<std::weak_ptr<const void>> owners;
  for (std::int64_t k = 1; k <= 4; ++k) {
    auto given = pieces({1, k});
    for (const Piece& piece : given) owners.push_back(piece.owner);
    queue.write({1, k}, std::move(given), outcomes_.collect());
    EXPECT_EQ(outcomes_.wait_for(static_cast<std::size_t>(k)).back().status, CKPT_ERR_TIMEOUT);
  }
  EXPECT_THAT(outcomes_.wait_for(4).back().sentence, HasSubstr("still uses its memory"));
  EXPECT_EQ(std::count_if(owners.begin(), owners.end(), [](const auto& owner) { return !owner.expired(); }), 1);
  disk_->fault = nullptr;
  disk_->held.clear();
  queue.write({1, 5}, pieces({1, 5}), outcomes_.collect());
  EXPECT_EQ(outcomes_.wait_for(5).back().kind, Kind::done);
}

}  // namespace
}  // namespace ckpt::persist::test
