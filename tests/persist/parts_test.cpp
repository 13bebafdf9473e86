// A shard that several nodes capture in parts: they write into one file, which is there with the step and not before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "memory_file_system.hpp"
#include "persist/storage_source.hpp"
#include "support.hpp"

namespace ckpt::persist::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string checkpoint_directory = "job/step-00000007/";
const std::string model_file = checkpoint_directory + "model.1.safetensors";
const FileSystemOptions small_blocks = {.queue_depth = 4, .block_bytes = 65536};

std::string as_text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class Parts : public testing::Test {
 protected:
  CheckpointRecord found() {
    const NewestComplete found = find_complete_checkpoint(files_, "job");
    EXPECT_TRUE(found.stored);
    EXPECT_THAT(found.problems, testing::IsEmpty());
    return found.stored.value_or(CheckpointRecord{});
  }

  std::shared_ptr<Disk> disk_ = std::make_shared<Disk>();
  MemoryFileSystem files_{disk_, small_blocks};
};

TEST_F(Parts, MakeUpTheSameFileAsTheWholeShard) {
  const CutCheckpoint captured({1, 7}, 3);
  captured.write_and_commit(files_);
  const Header header = encode_header(*captured.model.piece.manifest, "job");
  EXPECT_EQ(disk_->bytes(model_file), header.bytes + as_text(captured.model.bytes));
}

TEST_F(Parts, AreReadBackForAnyNumberOfParts) {
  std::int64_t iteration = 0;
  for (const std::uint32_t of : {1u, 2u, 3u, 4u, 7u, 12u})
    for (const std::int64_t elements : {0, 1, 2979, 9000, 40'000}) {  // fewer leaves than parts, too
      const CutCheckpoint captured({1, ++iteration}, of, elements);
      const CheckpointRecord stored = captured.write_and_commit(files_);
      EXPECT_TRUE(holds(files_, stored, captured)) << of << " parts of " << elements;
      EXPECT_TRUE(holds(files_, found(), captured));
    }
}

TEST_F(Parts, AreOfferedAsPiecesAndReadByRange) {
  const CutCheckpoint captured({1, 7}, 3, 20'000);
  captured.write_and_commit(files_);
  StorageSource source(std::make_unique<MemoryFileSystem>(disk_, small_blocks), "job");
  const Listing listing = source.list();
  ASSERT_EQ(listing.offers.size(), 1u);
  std::vector<std::string> names;
  for (const ShardOffer& offer : listing.offers.front().shards) {
    names.push_back(offer.shard);
    const Piece piece = captured.piece(offer.shard);
    EXPECT_EQ(offer.length_bytes, piece.manifest->length_bytes);
    EXPECT_EQ(offer.layout_bytes, piece.manifest->layout.size());
    EXPECT_EQ(offer.root_digest, piece.manifest->root_digest);
    EXPECT_THAT(offer.ranges, ElementsAre(ByteRange{0, offer.length_bytes}));
    EXPECT_EQ(source.manifest(offer.shard, {1, 7}), *piece.manifest);
    const std::uint64_t length = offer.length_bytes;
    for (const ByteRange range : {ByteRange{0, length}, {1, length - 1}, {length - 1, 1}, {length / 3, length / 2}}) {
      std::vector<std::byte> bytes(range.size_bytes);
      source.read(offer.shard, {1, 7}, range, bytes.data());
      EXPECT_EQ(std::memcmp(bytes.data(), piece.data + range.offset_bytes, bytes.size()), 0);
    }
    EXPECT_THROW(source.read(offer.shard, {1, 7}, {length, 1}, nullptr), Failure);
  }
  EXPECT_THAT(names, ElementsAre("model.0of3", "model.1of3", "model.2of3", "rank0"));
}

TEST_F(Parts, BecomeTheShardsOnlyFileAtTheCommit) {
  const CutCheckpoint captured({1, 7}, 2);
  captured.write(files_);
  EXPECT_FALSE(disk_->exists(model_file));
  captured.commit(files_);
  EXPECT_THAT(disk_->files(),
              testing::UnorderedElementsAre(
                  model_file, checkpoint_directory + "model.0of2.1.leaves", checkpoint_directory + "model.0of2.1.json",
                  checkpoint_directory + "model.1of2.1.leaves", checkpoint_directory + "model.1of2.1.json",
                  checkpoint_directory + "rank0.1.safetensors", checkpoint_directory + "rank0.1.leaves",
                  checkpoint_directory + "rank0.1.json", checkpoint_directory + "manifest.json"));
}

TEST_F(Parts, AreAllNeededForACommit) {
  const CutCheckpoint captured({1, 7}, 3);
  captured.write(files_, "model.0of3");
  captured.write(files_, "model.2of3");
  captured.write(files_, "rank0");
  EXPECT_THAT(refusal(CKPT_ERR_LOST, [&] { captured.commit(files_); }), HasSubstr("model.1of3.1.json is missing"));
  const auto commit_two = [&] { writer_on(files_).commit({1, 7}, 2, {"model.0of3", "model.2of3", "rank0"}); };
  EXPECT_THAT(refusal(CKPT_ERR_CORRUPT, commit_two), HasSubstr("step-00000007 has only 2 of the 3 parts"));
  EXPECT_FALSE(disk_->exists(model_file) || disk_->exists(checkpoint_directory + "manifest.json"));
  captured.write(files_, "model.1of3");
  captured.commit(files_);
  EXPECT_TRUE(holds(files_, found(), captured));
}

TEST_F(Parts, FromDifferentDivisionsOrShardsMakeUpNoFile) {
  const CutCheckpoint thirds({1, 7}, 3), halves({1, 7}, 2), others({1, 7}, 2, 9100);
  thirds.write(files_, "model.0of3");
  halves.write(files_, "model.0of2");
  others.write(files_, "model.1of2");
  for (const auto& names :
       std::vector<std::vector<std::string>>{{"model.0of2", "model.1of2"}, {"model.0of3", "model.1of2"}})
    EXPECT_THAT(refusal(CKPT_ERR_CORRUPT,
                        [&] {
                          writer_on(files_).commit({1, 7}, 2, names);
                        }),
                HasSubstr("belong to different files"));
}

TEST_F(Parts, MustFillTheFileForACommit) {
  const CutCheckpoint captured({1, 7}, 2);
  captured.write(files_);
  disk_->bytes(model_file + ".parts").pop_back();
  EXPECT_THAT(refusal(CKPT_ERR_LOST, [&] { captured.commit(files_); }),
              HasSubstr("model.1.safetensors.parts is missing or is not"));
  disk_->erase(model_file + ".parts");
  EXPECT_THAT(refusal(CKPT_ERR_LOST, [&] { captured.commit(files_); }), HasSubstr("model.1.safetensors.parts"));
}

TEST_F(Parts, AreNotWrittenIfTheyDoNotFitTheirName) {
  const CutCheckpoint captured({1, 7}, 2);
  Piece wrong = captured.piece("model.1of2");
  auto manifest = std::make_shared<arena::Manifest>(*wrong.manifest);
  manifest->shard = "model.1of3";
  wrong.manifest = manifest;
  EXPECT_THAT(refusal(CKPT_ERR_CORRUPT, [&] { writer_on(files_).write(wrong); }), HasSubstr("does not fit"));
  manifest->shard = "model.1of2";
  manifest->layout.clear();
  manifest->layout_hash = arena::layout_hash("");
  EXPECT_THAT(refusal(CKPT_ERR_CORRUPT, [&] { writer_on(files_).write(wrong); }), HasSubstr("does not fit"));
}

TEST_F(Parts, StayUnchangedIfWrittenAndCommittedAgain) {
  const CutCheckpoint captured({1, 7}, 3);
  captured.write(files_);
  captured.write(files_);
  const CheckpointRecord stored = captured.commit(files_);
  const auto before = disk_->files();
  captured.write(files_);
  EXPECT_EQ(captured.commit(files_), stored);
  EXPECT_EQ(disk_->files(), before);
  EXPECT_TRUE(holds(files_, found(), captured));
}

// Bytes of a checkpoint do not change once a record tells of them, whatever is captured under its name again.
TEST_F(Parts, AreRefusedIfTheirCheckpointIsStoredWithOtherBytes) {
  const CutCheckpoint captured({1, 7}, 3);
  captured.write_and_commit(files_);
  CutCheckpoint other({1, 7}, 3);
  other.model = sample("model", {9, 9}, 9000);
  auto manifest = std::make_shared<arena::Manifest>(*other.model.piece.manifest);
  manifest->checkpoint = {1, 7};
  other.model.piece.manifest = manifest;
  for (const std::string& name : core::parts_of("model", 3))
    EXPECT_THAT(refusal(CKPT_ERR_CORRUPT, [&] { other.write(files_, name); }), HasSubstr("describes other bytes"));
  // Cut otherwise they have other names, but no manifest takes the place of the one that is there.
  other.of = 2;
  other.write(files_);
  EXPECT_THAT(refusal(CKPT_ERR_CORRUPT, [&] { other.commit(files_); }),
              HasSubstr("manifest.json describes other bytes"));
  EXPECT_TRUE(holds(files_, found(), captured));
}

TEST_F(Parts, FromAnEarlierIncarnationDoNotReplaceALaterOnes) {
  const CutCheckpoint late({1, 7}, 2), captured({2, 7}, 3);
  late.write(files_);
  captured.write_and_commit(files_);
  EXPECT_THAT(refusal(CKPT_ERR_SUPERSEDED, [&] { late.commit(files_); }),
              HasSubstr("belongs to the later incarnation 2, so"));
  EXPECT_TRUE(holds(files_, found(), captured));
  prune_checkpoints(files_, "job", {});
  for (const std::string& path : disk_->files()) EXPECT_THAT(path, Not(HasSubstr(".1.")));
}

// Does something before an operation of a number.
class Meddled : public MemoryFileSystem {
 public:
  Meddled(std::shared_ptr<Disk> disk, int before, std::function<void()> meddle)
      : MemoryFileSystem(std::move(disk), small_blocks), left_(before), meddle_(std::move(meddle)) {}

  std::unique_ptr<File> create(const std::string& path, std::uint64_t expected_bytes) override {
    count();
    return MemoryFileSystem::create(path, expected_bytes);
  }
  std::unique_ptr<File> open(const std::string& path) override {
    count();
    return MemoryFileSystem::open(path);
  }
  std::unique_ptr<File> open_shared(const std::string& path, std::uint64_t expected_bytes) override {
    count();
    return MemoryFileSystem::open_shared(path, expected_bytes);
  }
  void rename(const std::string& from, const std::string& to) override {
    count();
    MemoryFileSystem::rename(from, to);
  }
  void link(const std::string& from, const std::string& to) override {
    count();
    MemoryFileSystem::link(from, to);
  }
  void remove(const std::string& path) override {
    count();
    MemoryFileSystem::remove(path);
  }
  void sync_directory(const std::string& path) override {
    count();
    MemoryFileSystem::sync_directory(path);
  }
  std::optional<std::uint64_t> file_size(const std::string& path) override {
    count();
    return MemoryFileSystem::file_size(path);
  }
  bool meddled() const { return left_ < 0; }

 private:
  void count() {
    if (left_-- == 0) meddle_();
  }
  int left_;
  std::function<void()> meddle_;
};

// Two nodes commit the same checkpoint, and a third, which was slow, writes once more a part that another wrote in its
// place: whatever comes before what, the checkpoint is whole. The late part goes to a file of its own that is never
// taken for whole.
TEST(PartsAtOnce, StayWholeUnderTwoCommitsAndALateWrite) {
  const CutCheckpoint captured({1, 7}, 3);
  for (int before = 0, meddled = 1; meddled != 0; ++before) {
    const auto disk = std::make_shared<Disk>();
    MemoryFileSystem files(disk, small_blocks);
    captured.write(files);
    Meddled slow(disk, before, [&] {
      captured.commit(files);
      // It had looked for its record before there was one.
      const auto late = files.open_shared(model_file + ".parts", disk->bytes(model_file).size());
      const Piece last = captured.piece("model.2of3");
      const CheckpointRecord stored = *list_checkpoints(files, "job").front().record;
      late->start_write(0, stored.find("model.2of3")->offset_bytes, last.data, last.manifest->length_bytes, last.owner);
      late->wait();
      late->sync();
    });
    captured.commit(slow);
    meddled = slow.meddled() ? 1 : 0;
    const NewestComplete found = find_complete_checkpoint(files, "job");
    ASSERT_TRUE(found.stored) << before;
    EXPECT_TRUE(holds(files, *found.stored, captured)) << before;
    prune_checkpoints(files, "job", {});
    EXPECT_FALSE(disk->exists(model_file + ".parts"));
  }
}

// One part is written by two nodes at once.
TEST(PartsAtOnce, WrittenByTwoAreWrittenOnce) {
  const CutCheckpoint captured({1, 7}, 2);
  for (int before = 0, meddled = 1; meddled != 0; ++before) {
    const auto disk = std::make_shared<Disk>();
    MemoryFileSystem files(disk, small_blocks);
    Meddled slow(disk, before, [&] { captured.write_and_commit(files); });
    captured.write(slow);
    meddled = slow.meddled() ? 1 : 0;
    captured.commit(files);
    const NewestComplete found = find_complete_checkpoint(files, "job");
    ASSERT_TRUE(found.stored) << before;
    EXPECT_TRUE(holds(files, *found.stored, captured)) << before;
  }
}

// As for whole shards: every operation fails once, in every way, and a repetition succeeds.
class PartsFailing : public testing::TestWithParam<int> {};  // with this error

TEST_P(PartsFailing, KeepsTheEarlierCheckpointIfAnyOperationFails) {
  const CutCheckpoint before({1, 6}, 3), captured({1, 7}, 3);
  bool struck = true;
  for (std::size_t failing = 0; struck; ++failing) {
    const auto disk = std::make_shared<Disk>();
    MemoryFileSystem files(disk, small_blocks);
    before.write_and_commit(files);
    const std::size_t first = disk->operations();
    disk->fault = [&](std::size_t number, const std::string&, const std::string&) {
      return number == first + failing ? GetParam() : 0;
    };
    bool refused = false;
    try {
      captured.write_and_commit(files);
    } catch (const Failure&) {
      refused = true;
    }
    struck = disk->operations() > first + failing;
    disk->fault = nullptr;
    const NewestComplete found = find_complete_checkpoint(files, "job");
    ASSERT_TRUE(found.stored);
    const bool is_new = found.stored->checkpoint == captured.checkpoint();
    EXPECT_TRUE(is_new || refused);
    EXPECT_TRUE(holds(files, *found.stored, is_new ? captured : before)) << GetParam() << " at " << failing;
    EXPECT_TRUE(holds(files, captured.write_and_commit(files), captured)) << GetParam() << " at " << failing;
    EXPECT_EQ(find_complete_checkpoint(files, "job").stored->checkpoint, captured.checkpoint());
    EXPECT_TRUE(struck || failing > 40);
  }
}

INSTANTIATE_TEST_SUITE_P(Errors, PartsFailing, testing::Values(EIO, ENOSPC, EACCES, ETIMEDOUT), error_name);

// What a manifest may not say of parts; its digest fits.
TEST_F(Parts, AreRefusedIfTheirManifestIsInconsistent) {
  const CutCheckpoint captured({1, 7}, 3);
  const CheckpointRecord whole = captured.write_and_commit(files_);
  const auto problem = [&](const std::function<void(CheckpointRecord&)>& change) {
    CheckpointRecord changed = whole;
    change(changed);
    disk_->bytes(checkpoint_directory + "manifest.json") = encode(changed);
    EXPECT_FALSE(find_complete_checkpoint(files_, "job").stored);
    return find_complete_checkpoint(files_, "job").problems.at(0);
  };
  EXPECT_THAT(problem([](CheckpointRecord& stored) { stored.shards.erase(stored.shards.begin() + 1); }),
              HasSubstr("manifest.json is malformed: step-00000007 has only 2 of the 3 parts"));
  EXPECT_THAT(problem([](CheckpointRecord& stored) { stored.shards[1].offset_bytes -= 65536; }),
              HasSubstr("shard model.1of3 has a place in its file that does not fit"));
  EXPECT_THAT(problem([](CheckpointRecord& stored) { stored.shards[1].data_bytes += 65536; }),
              HasSubstr("shard model.1of3 has a place in its file that does not fit"));
  EXPECT_THAT(problem([](CheckpointRecord& stored) { stored.shards[1].whole_bytes += 1; }),
              HasSubstr("different files"));
  EXPECT_THAT(problem([](CheckpointRecord& stored) { stored.shards[2].header_digest ^= 1; }),
              HasSubstr("different files"));
  EXPECT_THAT(problem([](CheckpointRecord& stored) { stored.shards[2].layout_hash ^= 1; }),
              HasSubstr("different files"));
  EXPECT_THAT(problem([&](CheckpointRecord& stored) {
                stored.shards[2] = describe(*captured.piece("rank0").manifest,
                                            encode_header(*captured.piece("rank0").manifest, "job"), "node");
                stored.shards[2].shard = "model";
                std::swap(stored.shards[2], stored.shards[1]);
                std::swap(stored.shards[1], stored.shards[0]);
              }),
              HasSubstr("different files"));
  EXPECT_THAT(problem([](CheckpointRecord& stored) {
                stored.shards[0].shard = "model.0of4";  // the ranges of quarters are others
              }),
              HasSubstr("a place in its file that does not fit"));
}

TEST_F(Parts, AreNamedWithTheirBytesInTheFileIfDamaged) {
  const CutCheckpoint captured({1, 7}, 3);
  const CheckpointRecord stored = captured.write_and_commit(files_);
  const std::uint64_t begin = stored.find("model.1of3")->offset_bytes;
  disk_->bytes(model_file)[begin + 5] ^= 1;
  EXPECT_EQ(find_complete_checkpoint(files_, "job").problems.at(0),
            "mem:" + model_file + " is damaged between bytes " + std::to_string(begin) + " and " +
                std::to_string(begin + 65536) + ": leaf 0 does not match its digest");
  EXPECT_NO_THROW(read_all(files_, stored, "model.0of3"));
  EXPECT_NO_THROW(read_all(files_, stored, "model.2of3"));
  disk_->bytes(model_file)[begin + 5] ^= 1;
  EXPECT_TRUE(holds(files_, found(), captured));
  disk_->erase(checkpoint_directory + "model.2of3.1.leaves");
  EXPECT_THAT(find_complete_checkpoint(files_, "job").problems.at(0), HasSubstr("model.2of3.1.leaves is missing"));
}

}  // namespace
}  // namespace ckpt::persist::test
