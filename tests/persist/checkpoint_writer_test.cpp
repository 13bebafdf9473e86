#include "persist/checkpoint_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "memory_file_system.hpp"
#include "support.hpp"

namespace ckpt::persist::test {
namespace {

using testing::HasSubstr;

class CheckpointWriting : public testing::Test {
 protected:
  std::shared_ptr<Disk> disk_ = std::make_shared<Disk>();
  FileSystemOptions options_ = {.queue_depth = 4, .block_bytes = 65536};
  MemoryFileSystem files_{disk_, options_};
};

TEST_F(CheckpointWriting, ReadsBackWhatWasWrittenBitForBit) {
  for (const std::int64_t elements : {0, 1, 5000, 40000}) {
    const CheckpointId checkpoint(1, elements);
    const CheckpointRecord stored = write_checkpoint(files_, checkpoint, elements);
    EXPECT_TRUE(holds_what_was_written(files_, stored, elements)) << elements;
    const ShardReader reader(files_, stored, "rank1");
    EXPECT_EQ(reader.manifest(), *sample("rank1", checkpoint, elements).piece.manifest);
  }
}

TEST_F(CheckpointWriting, ShardFileHoldsExactlyLayoutAndBytes) {
  const Sample rank0 = sample("rank0", {3, 7});
  writer_on(files_).write(rank0.piece);
  const std::string& file = disk_->bytes("job/step-00000007/rank0.3.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  ASSERT_EQ((8 + length) % data_alignment_bytes, 0u);
  auto header = nlohmann::json::parse(file.substr(8, length));
  EXPECT_EQ(header["__metadata__"]["ckptengine.shard"], "rank0");
  header.erase("__metadata__");
  EXPECT_EQ(header, nlohmann::json::parse(rank0.piece.manifest->layout));
  EXPECT_EQ(file.substr(8 + length),
            std::string(reinterpret_cast<const char*>(rank0.bytes.data()), rank0.bytes.size()));
}

TEST_F(CheckpointWriting, WritesBytesWithoutALayoutAsOneTensor) {
  const auto data = kernels::random_bytes(1, 100'001);
  const auto manifest = manifest_for("blob", {1, 1}, "", data);
  CheckpointWriter writer = writer_on(files_);
  writer.write({manifest, data.data(), nullptr});
  const CheckpointRecord stored = writer.commit({1, 1}, 2, {"blob"});
  EXPECT_EQ(read_all(files_, stored, "blob"), data);
  EXPECT_EQ(ShardReader(files_, stored, "blob").manifest(), *manifest);
  EXPECT_THAT(disk_->bytes("job/step-00000001/blob.1.safetensors"),
              HasSubstr(R"("ckptengine.opaque":{"dtype":"U8","shape":[100001],"data_offsets":[0,100001]})"));
}

TEST_F(CheckpointWriting, WritesAShardWithoutTensors) {
  const Sample none = sample("none", {1, 1}, arena::Layout{});
  CheckpointWriter writer = writer_on(files_);
  writer.write(none.piece);
  const CheckpointRecord stored = writer.commit({1, 1}, 2, {"none"});
  EXPECT_EQ(ShardReader(files_, stored, "none").manifest(), *none.piece.manifest);
}

TEST_F(CheckpointWriting, DoesNotWriteBytesThatChangedSinceTheirCapture) {
  const Sample rank0 = sample("rank0", {1, 1}, 40000);
  const std::size_t leaf = rank0.piece.manifest->leaves.size() - 1;
  const_cast<std::byte*>(rank0.piece.data)[rank0.bytes.size() - 1] ^= std::byte{1};
  EXPECT_THAT(refusal(CKPT_ERR_CORRUPT, [&] { writer_on(files_).write(rank0.piece); }),
              HasSubstr("leaf " + std::to_string(leaf) + " of shard rank0 changed in memory"));
  EXPECT_THAT(disk_->files(), testing::IsEmpty());
}

TEST_F(CheckpointWriting, RefusesACommitWithAMissingOrTruncatedShard) {
  CheckpointWriter writer = writer_on(files_);
  writer.write(sample("rank0", {1, 1}).piece);
  const auto commit = [&] { writer.commit({1, 1}, 2, two_shards); };
  EXPECT_THAT(refusal(CKPT_ERR_LOST, commit), HasSubstr("rank1.1.json is missing"));
  writer.write(sample("rank1", {1, 1}).piece);
  disk_->bytes("job/step-00000001/rank1.1.leaves").pop_back();
  EXPECT_THAT(refusal(CKPT_ERR_LOST, commit), HasSubstr("rank1.1.leaves"));
  disk_->bytes("job/step-00000001/rank1.1.leaves") += 'x';
  disk_->erase("job/step-00000001/rank1.1.safetensors");
  EXPECT_THAT(refusal(CKPT_ERR_LOST, commit), HasSubstr("rank1.1.safetensors"));
  EXPECT_FALSE(disk_->exists("job/step-00000001/manifest.json"));
}

TEST_F(CheckpointWriting, RefusesACommitWithShardsOfOtherCheckpoints) {
  CheckpointWriter writer = writer_on(files_);
  writer.write(sample("rank0", {2, 1}).piece);
  writer.write(sample("rank1", {1, 1}).piece);  // of the incarnation before
  EXPECT_THAT(refusal(CKPT_ERR_LOST, [&] { writer.commit({2, 1}, 2, two_shards); }), HasSubstr("rank1.2.json"));
  disk_->put("job/step-00000001/rank1.2.json", disk_->bytes("job/step-00000001/rank1.1.json"));
  EXPECT_THAT(refusal(CKPT_ERR_CORRUPT,
                      [&] {
                        writer.commit({2, 1}, 2, two_shards);
                      }),
              HasSubstr("describes another piece"));
  EXPECT_THAT(refusal(CKPT_ERR_CORRUPT,
                      [&] {
                        writer.commit({2, 1}, 3, {"rank0"});
                      }),
              HasSubstr("describes another piece"));
}

TEST_F(CheckpointWriting, CommitOfAnotherIncarnationReplacesACheckpointAtomically) {
  write_checkpoint(files_, {1, 5});
  for (const std::string& shard : two_shards) writer_on(files_).write(sample(shard, {2, 5}).piece);
  ASSERT_TRUE(find_complete_checkpoint(files_, "job").stored);
  EXPECT_EQ(find_complete_checkpoint(files_, "job").stored->checkpoint, CheckpointId(1, 5));
  writer_on(files_).commit({2, 5}, 2, two_shards);
  const NewestComplete found = find_complete_checkpoint(files_, "job");
  ASSERT_TRUE(found.stored);
  EXPECT_EQ(found.stored->checkpoint, CheckpointId(2, 5));
  EXPECT_TRUE(holds_what_was_written(files_, *found.stored));
}

TEST_F(CheckpointWriting, AcceptsWritingAShardTwice) {
  write_checkpoint(files_, {1, 5});
  writer_on(files_).write(sample("rank0", {1, 5}).piece);
  const NewestComplete found = find_complete_checkpoint(files_, "job");
  ASSERT_TRUE(found.stored);
  EXPECT_TRUE(holds_what_was_written(files_, *found.stored));
}

// Every operation fails once, in every way: no failure leaves a checkpoint that counts and is not whole, the one before
// stays, and after the failure the same can be done again.
class CheckpointWritingFailing : public CheckpointWriting, public testing::WithParamInterface<int> {};  // this error

TEST_P(CheckpointWritingFailing, KeepsTheEarlierCheckpointIfAnyOperationFails) {
  for (std::size_t failing = 0;; ++failing) {
    const auto disk = std::make_shared<Disk>();
    MemoryFileSystem files(disk, options_);
    write_checkpoint(files, {1, 1});
    const std::size_t first = disk->operations();
    disk->fault = [&](std::size_t number, const std::string&, const std::string&) {
      return number == first + failing ? GetParam() : 0;
    };
    std::string sentence;
    try {
      write_checkpoint(files, {1, 2});
    } catch (const Failure& failure) {
      sentence = failure.what();
    }
    const bool struck = disk->operations() > first + failing;
    disk->fault = nullptr;
    const NewestComplete found = find_complete_checkpoint(files, "job");
    ASSERT_TRUE(found.stored);
    // What was removed after a failure may itself have failed: then the write had succeeded before.
    EXPECT_EQ(found.stored->checkpoint.iteration(), sentence.empty() ? 2 : found.stored->checkpoint.iteration());
    EXPECT_TRUE(holds_what_was_written(files, *found.stored)) << GetParam() << " at " << failing;
    if (!struck) {
      EXPECT_TRUE(sentence.empty());
      EXPECT_GT(failing, 20u);
      break;
    }
    EXPECT_EQ(write_checkpoint(files, {1, 2}).checkpoint, CheckpointId(1, 2));
    EXPECT_EQ(find_complete_checkpoint(files, "job").stored->checkpoint, CheckpointId(1, 2));
  }
}

INSTANTIATE_TEST_SUITE_P(Errors, CheckpointWritingFailing,
                         testing::Values(EIO, ENOSPC, EACCES, EROFS, ESTALE, ETIMEDOUT), error_name);

TEST_F(CheckpointWriting, RemovesADiscardedCheckpointAndKeepsAWholeOne) {
  CheckpointWriter writer = writer_on(files_);
  writer.write(sample("rank0", {1, 1}).piece);
  writer.write(sample("rank1", {1, 1}).piece);
  writer.discard({1, 1}, {"rank0"});
  EXPECT_TRUE(disk_->exists("job/step-00000001/rank1.1.safetensors"));
  writer.discard({1, 1}, two_shards);
  EXPECT_TRUE(files_.list("job/step-00000001").empty());
  const CheckpointRecord whole = write_checkpoint(files_, {1, 2}, 100);
  writer.discard({1, 2}, two_shards);
  EXPECT_TRUE(holds_what_was_written(files_, whole, 100));
}

TEST_F(CheckpointWriting, WritesNothingIfTheMountIsMissing) {
  disk_->is_there = false;
  EXPECT_THAT(refusal(CKPT_ERR_SYSTEM,
                      [&] {
                        write_checkpoint(files_, {1, 1}, 3);
                      }),
              HasSubstr("does not exist; create it, or mount it"));
  EXPECT_THAT(refusal(CKPT_ERR_SYSTEM, [&] { list_checkpoints(files_, "job"); }), HasSubstr("create it, or mount it"));
  EXPECT_THAT(disk_->files(), testing::IsEmpty());
  disk_->is_there = true;
  EXPECT_TRUE(list_checkpoints(files_, "job").empty());
  EXPECT_TRUE(holds_what_was_written(files_, write_checkpoint(files_, {1, 1}, 3), 3));
}

TEST_F(CheckpointWriting, ReportsAFullDiskAndLeavesNoPartialFiles) {
  write_checkpoint(files_, {1, 1});
  const auto before = disk_->files();
  disk_->capacity_bytes = 200'000;
  EXPECT_THAT(refusal(CKPT_ERR_NO_SPACE, [&] { write_checkpoint(files_, {1, 2}); }), HasSubstr("the storage is full"));
  EXPECT_EQ(disk_->files(), before);
}

}  // namespace
}  // namespace ckpt::persist::test
