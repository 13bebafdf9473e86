// Whatever is wrong with a checkpoint on storage, it is skipped with a sentence that says what and where, and the
// checkpoint before it is found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "memory_file_system.hpp"
#include "persist/storage_source.hpp"
#include "support.hpp"

namespace ckpt::persist::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string newest = "job/step-00000002/";

std::string text_of(int error) { return std::generic_category().message(error); }

class Damage : public testing::Test {
 protected:
  // A disk with two whole checkpoints; cheap, so that each damage gets its own.
  static std::shared_ptr<Disk> two_checkpoints() {
    static const std::shared_ptr<Disk> master = [] {
      auto disk = std::make_shared<Disk>();
      MemoryFileSystem files(disk, options());
      write_checkpoint(files, {1, 1});
      write_checkpoint(files, {1, 2});
      return disk;
    }();
    return master->after_power_cut(Disk::Survives::everything);
  }
  static FileSystemOptions options() { return {.queue_depth = 4, .block_bytes = 65536}; }

  // The sentence about the newest checkpoint, after checking that the one before was found.
  static std::string sentence(const std::shared_ptr<Disk>& disk) {
    MemoryFileSystem files(disk, options());
    const NewestComplete found = find_complete_checkpoint(files, "job");
    EXPECT_TRUE(found.stored && found.stored->checkpoint == CheckpointId(1, 1));
    EXPECT_EQ(found.problems.size(), 1u);
    return found.problems.empty() ? "none" : found.problems.front();
  }

  template <class Change>
  static std::string after(Change change) {
    const auto disk = two_checkpoints();
    change(*disk);
    return sentence(disk);
  }
};

TEST_F(Damage, FindsAFlippedBitAnywhere) {
  const auto files = two_checkpoints()->files();
  for (const std::string& path : files) {
    if (!path.starts_with(newest) || path.ends_with(".json")) continue;
    const std::size_t size = two_checkpoints()->bytes(path).size();
    const std::size_t stride = std::max<std::size_t>(1, size / 61);
    for (std::size_t at = 0; at < size; at += stride) {
      const std::string problem = after([&](Disk& disk) { disk.bytes(path)[at] ^= 4; });
      EXPECT_THAT(problem, HasSubstr(path));
      EXPECT_THAT(problem, HasSubstr("damaged"));
    }
    EXPECT_THAT(after([&](Disk& disk) { disk.bytes(path).back() ^= 1; }), HasSubstr("damaged"));
  }
}

TEST_F(Damage, FindsAFlippedBitAnywhereInAManifest) {
  const std::size_t size = two_checkpoints()->bytes(newest + "manifest.json").size();
  for (std::size_t at = 0; at < size; ++at)
    EXPECT_THAT(after([&](Disk& disk) { disk.bytes(newest + "manifest.json")[at] ^= static_cast<char>(1 << at % 8); }),
                HasSubstr("step-00000002/manifest.json is damaged"));
}

TEST_F(Damage, NamesADamagedLeafWithItsBytes) {
  const auto disk = two_checkpoints();
  std::string& bytes = disk->bytes(newest + "rank1.1.safetensors");
  bytes[4096 + 65536 + 17] ^= 1;
  EXPECT_EQ(sentence(disk), "mem:" + newest + "rank1.1.safetensors is damaged between bytes 69632 and " +
                                std::to_string(std::min<std::size_t>(bytes.size(), 135168)) +
                                ": leaf 1 does not match its digest");
}

TEST_F(Damage, FindsATruncatedOrExtendedFile) {
  for (const std::string& path : two_checkpoints()->files()) {
    if (!path.starts_with(newest) || path.ends_with("1.json")) continue;
    const std::size_t size = two_checkpoints()->bytes(path).size();
    for (const std::size_t length : {std::size_t{0}, std::size_t{1}, size / 2, size - 1, size + 1, size + 4096}) {
      const std::string problem = after([&](Disk& disk) { disk.bytes(path).resize(length, '\0'); });
      EXPECT_THAT(problem, HasSubstr(path));
    }
  }
}

TEST_F(Damage, NamesAMissingFile) {
  EXPECT_THAT(after([](Disk& disk) { disk.erase(newest + "rank0.1.safetensors"); }),
              HasSubstr(newest + "rank0.1.safetensors is missing"));
  EXPECT_THAT(after([](Disk& disk) { disk.erase(newest + "rank1.1.leaves"); }),
              HasSubstr(newest + "rank1.1.leaves is missing"));
  EXPECT_THAT(after([](Disk& disk) { disk.erase(newest + "manifest.json"); }),
              HasSubstr("step-00000002 has no manifest.json: the checkpoint was never completed"));
}

TEST_F(Damage, FindsSwappedFiles) {
  EXPECT_THAT(after([](Disk& disk) {
                std::swap(disk.bytes(newest + "rank0.1.safetensors"), disk.bytes(newest + "rank1.1.safetensors"));
              }),
              HasSubstr("rank0.1.safetensors is damaged"));
  EXPECT_THAT(after([](Disk& disk) {
                std::swap(disk.bytes(newest + "rank0.1.leaves"), disk.bytes(newest + "rank1.1.leaves"));
              }),
              HasSubstr("rank0.1.leaves is damaged"));
  EXPECT_THAT(after([](Disk& disk) {
                disk.bytes(newest + "rank0.1.safetensors") = disk.bytes("job/step-00000001/rank0.1.safetensors");
              }),
              HasSubstr("rank0.1.safetensors is damaged"));
  EXPECT_THAT(
      after([](Disk& disk) { disk.bytes(newest + "manifest.json") = disk.bytes("job/step-00000001/manifest.json"); }),
      HasSubstr("belongs to iteration 1 of job job"));
}

// A manifest with a field changed and a digest that fits: written by somebody else, or by a later checkpoint.
std::string resealed(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(digest_of(text.substr(28))));
  return text.replace(9, 16, digits);
}

TEST_F(Damage, RefusesAnImpossibleManifestWithTheReason) {
  const std::vector<std::array<std::string, 3>> cases = {
      {"\"format\":1", "\"format\":2", "has format 2, but this version reads only format 1"},
      {"\"kind\":\"step\"", "\"kind\":\"soup\"", "kind is \"soup\""},
      {"\"kind\":\"step\"", "\"kind\":\"shard\"", "but must describe a single one"},
      {"\"job\":\"job\"", "\"job\":\"jab\"", "belongs to iteration 2 of job jab"},
      {"\"job\":\"job\"", "\"job\":\"../x\"", "\"job\" is not a plain name"},
      {"\"iteration\":2", "\"iteration\":3", "belongs to iteration 3"},
      {"\"iteration\":2", "\"iteration\":-2", "\"iteration\" is not a whole number"},
      {"\"incarnation\":1", "\"incarnation\":0", "out of bounds"},
      {"\"incarnation\":1", "\"incarnation\":2", "have wrong names"},
      {"\"world_size\":2", "\"world_size\":4294967296", "out of bounds"},
      {"\"shard\":\"rank0\"", "\"shard\":\"../rank0\"", "\"shard\" is not a plain name"},
      {"\"shard\":\"rank0\"", "\"shard\":\"/etc/passwd\"", "\"shard\" is not a plain name"},
      {"\"shard\":\"rank0\"", "\"shard\":7", "a field is missing or of the wrong type"},
      {"\"file\":\"rank0.1.safetensors\"", "\"file\":\"../../rank0.1.safetensors\"", "wrong names"},
      {"\"leaves\":\"rank0.1.leaves\"", "\"leaves\":\"/dev/zero\"", "wrong names"},
      {"\"shard\":\"rank0\",\"file\":\"rank0.1", "\"shard\":\"rank2\",\"file\":\"rank2.1", "wrong names"},
      {"\"header_bytes\":4096", "\"header_bytes\":4095", "do not fit"},
      {"\"header_bytes\":4096", "\"header_bytes\":0", "do not fit"},
      {"\"header_bytes\":4096", "\"header_bytes\":18446744073709551615", "\"header_bytes\" is out of bounds"},
      {"\"file_bytes\":", "\"file_bytes\":1", "does not fit its name and the sizes"},
      {"\"file_bytes\":7", "\"file_bytes\":", "does not fit its name and the sizes"},
      {"\"offset_bytes\":4096", "\"offset_bytes\":4095", "does not fit its name and the sizes"},
      {"\"data_bytes\":", "\"data_bytes\":1", "does not fit its name and the sizes"},
      {"\"data_bytes\":", "\"data_bytes\":-", "\"data_bytes\" is not a whole number"},
      {"\"root_xxh3\":\"", "\"root_xxh3\":\"z", "\"root_xxh3\" is not a digest"},
      {"\"written_by\"", "\"weitten_by\"", "a field is missing"},
      {"\"shards\":[", "\"shards\":[[],", "a field is missing"},
      {"]}\n", "", "a field is missing"},
  };
  for (const auto& [from, to, reason] : cases) {
    const std::string problem = after([&, from = from, to = to](Disk& disk) {
      std::string& text = disk.bytes(newest + "manifest.json");
      text = resealed(text, from, to);
    });
    EXPECT_THAT(problem, HasSubstr(newest + "manifest.json"));
    EXPECT_THAT(problem, HasSubstr(reason)) << to;
  }
}

// Failures of whatever is done to a file, or all files, of the newest checkpoint.
std::shared_ptr<Disk> failing(std::shared_ptr<Disk> disk, const std::string& file, int error) {
  disk->fault = [=](std::size_t, const std::string& operation, const std::string& path) {
    return operation != "list" && path.starts_with(newest + file) ? error : 0;
  };
  return disk;
}

// It may be whole, and is the newest: nobody may take it for one that is lost.
TEST_F(Damage, UnreadableCheckpointIsWithheldAndNotDamaged) {
  for (const int error : {EIO, EACCES, EPERM, ESTALE, ELOOP, EROFS}) {
    for (const std::string file : {"manifest.json", "rank1.1.safetensors", "rank0.1.leaves"}) {
      const auto disk = failing(two_checkpoints(), file, error);
      EXPECT_THAT(sentence(disk), HasSubstr(newest + file));
      MemoryFileSystem files(disk, options());
      const auto stored_checkpoints = list_checkpoints(files, "job");
      const auto found = std::find_if(stored_checkpoints.begin(), stored_checkpoints.end(),
                                      [](const StoredCheckpoint& stored) { return stored.iteration == 2; });
      ASSERT_NE(found, stored_checkpoints.end());
      EXPECT_TRUE(found->is_withheld);
      EXPECT_FALSE(found->usable());
      const Listing listing = StorageSource(std::make_unique<MemoryFileSystem>(disk, options()), "job").list();
      EXPECT_EQ(listing.offers.size(), 1u);
      EXPECT_THAT(listing.problems, testing::IsEmpty());
      EXPECT_THAT(listing.withheld, ElementsAre(testing::AllOf(HasSubstr(newest + file), HasSubstr(text_of(error)),
                                                               HasSubstr("newer than all that can be read"))));
    }
  }
}

TEST_F(Damage, MissingOrWrongFilesCountAsDamage) {
  for (const int error : {ENOENT, ENOTDIR, EISDIR}) {
    const auto disk = failing(two_checkpoints(), "manifest.json", error);
    EXPECT_THAT(sentence(disk), HasSubstr(text_of(error)));
    const Listing listing = StorageSource(std::make_unique<MemoryFileSystem>(disk, options()), "job").list();
    EXPECT_EQ(listing.problems.size(), 1u);
    EXPECT_THAT(listing.withheld, testing::IsEmpty());
  }
  const auto disk = two_checkpoints();
  disk->bytes(newest + "manifest.json")[100] ^= 1;
  EXPECT_THAT(StorageSource(std::make_unique<MemoryFileSystem>(disk, options()), "job").list().withheld,
              testing::IsEmpty());
}

// Nothing is said about the checkpoints of a storage that does not answer.
TEST_F(Damage, HungStorageDoesNotCountAsDamage) {
  for (const char* operation : {"list", "stat", "open", "read"}) {
    const auto disk = two_checkpoints();
    disk->fault = [&](std::size_t, const std::string& at, const std::string&) {
      return at == operation ? ETIMEDOUT : 0;
    };
    MemoryFileSystem files(disk, options());
    try {
      find_complete_checkpoint(files, "job");
      ADD_FAILURE() << operation;
    } catch (const StorageError& error) {
      EXPECT_EQ(error.status(), CKPT_ERR_TIMEOUT);
    }
  }
}

TEST_F(Damage, UnknownJobHasNoCheckpoints) {
  MemoryFileSystem files(two_checkpoints(), options());
  EXPECT_TRUE(list_checkpoints(files, "other").empty());
  EXPECT_FALSE(find_complete_checkpoint(files, "other").stored);
}

TEST_F(Damage, LeavesForeignFilesBesideCheckpoints) {
  const auto disk = two_checkpoints();
  disk->put("job/notes.txt", "x");
  disk->put("job/step-1", "x");
  disk->put("job/step-00000003x", "x");
  MemoryFileSystem files(disk, options());
  EXPECT_EQ(list_checkpoints(files, "job").size(), 2u);
  prune_checkpoints(files, "job", {.keep_last = 1});
  EXPECT_TRUE(disk->exists("job/notes.txt") && disk->exists("job/step-1"));
}

std::vector<std::int64_t> iterations(FileSystem& files) {
  std::vector<std::int64_t> list;
  for (const StoredCheckpoint& stored : list_checkpoints(files, "job")) list.push_back(stored.iteration);
  return list;
}

TEST(CheckpointCatalog, ListsNewestFirstByIncarnationThenIteration) {
  MemoryFileSystem files(std::make_shared<Disk>());
  for (const CheckpointId checkpoint :
       {CheckpointId(1, 30), CheckpointId(2, 10), CheckpointId(1, 7), CheckpointId(2, 20)})
    write_checkpoint(files, checkpoint, 3);
  EXPECT_THAT(iterations(files), ElementsAre(20, 10, 30, 7));
}

TEST(CheckpointCatalog, KeepsTheLastAndEveryKthCheckpoint) {
  MemoryFileSystem files(std::make_shared<Disk>());
  for (std::int64_t k = 1; k <= 12; ++k) write_checkpoint(files, {1, k}, 3);
  EXPECT_THAT(prune_checkpoints(files, "job", {.keep_last = 2, .keep_every = 5}).removed,
              ElementsAre(9, 8, 7, 6, 4, 3, 2, 1));
  EXPECT_THAT(iterations(files), ElementsAre(12, 11, 10, 5));
  EXPECT_THAT(prune_checkpoints(files, "job", {.keep_last = 0}).removed, ElementsAre(11, 10, 5));
}

TEST(CheckpointCatalog, RetentionDoesNotCountDamagedOrUnfinishedCheckpoints) {
  const auto disk = std::make_shared<Disk>();
  MemoryFileSystem files(disk);
  for (std::int64_t k = 1; k <= 4; ++k) write_checkpoint(files, {1, k}, 3);
  disk->bytes("job/step-00000004/rank0.1.safetensors") += "x";
  disk->bytes("job/step-00000002/rank0.1.leaves") += "x";
  writer_on(files).write(sample("rank0", {1, 5}).piece);  // under way
  EXPECT_THAT(prune_checkpoints(files, "job", {.keep_last = 1}).removed, testing::UnorderedElementsAre(1, 2));
  EXPECT_THAT(iterations(files), testing::UnorderedElementsAre(3, 4, 5));
  EXPECT_EQ(find_complete_checkpoint(files, "job").stored->checkpoint, CheckpointId(1, 3));
}

TEST(CheckpointCatalog, NeitherRemovesNorCountsWithheldCheckpoints) {
  const auto disk = std::make_shared<Disk>();
  MemoryFileSystem files(disk);
  for (std::int64_t k = 1; k <= 5; ++k) write_checkpoint(files, {1, k}, 3);
  const auto before = disk->files();
  disk->fault = [](std::size_t, const std::string& operation, const std::string& path) {
    const bool is_withheld = path == "job/step-00000004/manifest.json" || path == "job/step-00000001/rank0.1.leaves";
    return operation == "stat" && is_withheld ? EIO : 0;
  };
  EXPECT_TRUE(prune_checkpoints(files, "job", {.keep_last = 3}).removed.empty());
  EXPECT_EQ(disk->files(), before);
  EXPECT_THAT(prune_checkpoints(files, "job", {.keep_last = 1}).removed, ElementsAre(3, 2));
  disk->fault = nullptr;
  EXPECT_THAT(iterations(files), ElementsAre(5, 4, 1));
  EXPECT_TRUE(find_complete_checkpoint(files, "job").problems.empty());
}

TEST(CheckpointCatalog, RetentionKeepsGoodCheckpointsInsteadOfKnownDamagedOnes) {
  const auto disk = std::make_shared<Disk>();
  MemoryFileSystem files(disk);
  for (std::int64_t k = 1; k <= 6; ++k) write_checkpoint(files, {1, k}, 3);
  const std::set<CheckpointId> damaged = {{1, 2}, {1, 4}, {1, 6}, {3, 5}};
  EXPECT_THAT(prune_checkpoints(files, "job", {.keep_last = 2, .keep_every = 2}, damaged).removed,
              ElementsAre(4, 2, 1));
  EXPECT_THAT(iterations(files), ElementsAre(6, 5, 3));
  EXPECT_TRUE(prune_checkpoints(files, "job", {.keep_last = 2}, {{1, 3}, {1, 5}, {1, 6}}).removed.empty());
  EXPECT_THAT(prune_checkpoints(files, "job", {.keep_last = 2}).removed, ElementsAre(3));
}

TEST(CheckpointCatalog, RemovesUnfinishedFilesOnceALaterIncarnationHasACheckpoint) {
  const auto disk = std::make_shared<Disk>();
  MemoryFileSystem files(disk);
  writer_on(files).write(sample("rank0", {1, 50}).piece);
  EXPECT_TRUE(prune_checkpoints(files, "job", {}).removed.empty());
  write_checkpoint(files, {2, 10}, 3);
  EXPECT_THAT(prune_checkpoints(files, "job", {}).removed, ElementsAre(50));
  EXPECT_THAT(iterations(files), ElementsAre(10));
}

TEST(CheckpointCatalog, NeverRemovesACheckpointOfALaterFormat) {
  const auto disk = std::make_shared<Disk>();
  MemoryFileSystem files(disk);
  for (std::int64_t k = 1; k <= 3; ++k) write_checkpoint(files, {1, k}, 3);
  disk->put("job/step-00000001/rank0.1.zstd", "x");  // a kind of file that we do not know
  disk->erase("job/step-00000001/rank0.1.safetensors");
  EXPECT_THAT(prune_checkpoints(files, "job", {.keep_last = 1}).removed, ElementsAre(2));
}

TEST(CheckpointCatalog, RemovesUnneededFilesFromAKeptCheckpoint) {
  const auto disk = std::make_shared<Disk>();
  MemoryFileSystem files(disk);
  write_checkpoint(files, {1, 5}, 3);
  write_checkpoint(files, {2, 5}, 3);
  const std::string stored = "job/step-00000005/";
  disk->put(stored + "rank0.2.safetensors.0123456789abcdef.part", "left by a broken write");
  disk->put(stored + "rank0.3.safetensors.0123456789abcdef.part", "a later incarnation is writing");
  disk->put(stored + "notes.txt", "somebody else's");
  prune_checkpoints(files, "job", {});
  EXPECT_THAT(disk->files(),
              testing::UnorderedElementsAre(
                  stored + "manifest.json", stored + "notes.txt", stored + "rank0.2.json", stored + "rank0.2.leaves",
                  stored + "rank0.2.safetensors", stored + "rank0.3.safetensors.0123456789abcdef.part",
                  stored + "rank1.2.json", stored + "rank1.2.leaves", stored + "rank1.2.safetensors"));
}

std::vector<std::string> left_overs(const Disk& disk) {
  std::vector<std::string> paths;
  for (const std::string& path : disk.files())
    if (path.ends_with(part_suffix) || path.ends_with(parts_suffix)) paths.push_back(path);
  return paths;
}

// Whichever operation a write hangs in: the files on their way that it cannot clean up are gone once a newer checkpoint
// is there, whether its own checkpoint came to be after all or not.
TEST(CheckpointCatalog, RemovesFilesOfAHungWriteOnceANewerCheckpointExists) {
  std::size_t left = 0;
  for (std::size_t failing = 0, struck = 1; struck != 0; ++failing) {
    const auto disk = std::make_shared<Disk>();
    MemoryFileSystem files(disk, {.queue_depth = 4, .block_bytes = 65536});
    const CutCheckpoint captured({1, 7}, 2);
    disk->fault = [&](std::size_t number, const std::string&, const std::string&) {
      return number >= failing ? ETIMEDOUT : 0;
    };
    try {
      captured.write_and_commit(files);
    } catch (const Failure&) {
    }
    struck = disk->operations() > failing ? 1 : 0;
    disk->fault = nullptr;
    left += left_overs(*disk).size();
    if (failing % 2 == 0) captured.write_and_commit(files);
    write_checkpoint(files, {1, 8}, 3);
    prune_checkpoints(files, "job", {.keep_last = 2});
    EXPECT_THAT(left_overs(*disk), testing::IsEmpty()) << "operation " << failing;
    for (const StoredCheckpoint& stored : list_checkpoints(files, "job"))
      EXPECT_TRUE(stored.usable()) << stored.problem;
  }
  EXPECT_GT(left, 20u);
}

// The same where the storage comes back at once, and the checkpoint is given up: the next write discards it.
TEST(CheckpointCatalog, RemovesFilesOfAFailedWriteOnDiscardOrNewerCheckpoint) {
  for (std::size_t failing = 0, struck = 1; struck != 0; ++failing) {
    const auto disk = std::make_shared<Disk>();
    MemoryFileSystem files(disk, {.queue_depth = 4, .block_bytes = 65536});
    const CutCheckpoint captured({1, 7}, 2);
    disk->fault = [&](std::size_t number, const std::string&, const std::string&) {
      return number == failing ? EIO : 0;
    };
    try {
      captured.write(files);
    } catch (const Failure&) {
    }
    struck = disk->operations() > failing ? 1 : 0;
    disk->fault = nullptr;
    writer_on(files).discard({1, 7}, captured.names());
    EXPECT_THAT(disk->files(), testing::IsEmpty()) << "operation " << failing;
    write_checkpoint(files, {1, 8}, 3);
    prune_checkpoints(files, "job", {});
    EXPECT_THAT(iterations(files), ElementsAre(8));
  }
}

TEST(CheckpointCatalog, RemovesLaterIncarnationsFilesFromAKeptCheckpoint) {
  const auto disk = std::make_shared<Disk>();
  MemoryFileSystem files(disk);
  write_checkpoint(files, {1, 5}, 3);
  writer_on(files).write(sample("rank0", {2, 5}, 3).piece);
  const std::string manifest = "job/step-00000005/manifest.json.0123456789abcdef.part";
  disk->put(manifest, "x");
  const auto before = disk->files();
  prune_checkpoints(files, "job", {});
  EXPECT_EQ(disk->files(), before);  // it may still be at it
  write_checkpoint(files, {3, 6}, 3);
  prune_checkpoints(files, "job", {});
  for (const std::string& path : disk->files()) EXPECT_THAT(path, Not(HasSubstr("rank0.2.")));
  EXPECT_FALSE(disk->exists(manifest));
  EXPECT_TRUE(find_complete_checkpoint(files, "job").problems.empty());
  EXPECT_THAT(iterations(files), ElementsAre(6, 5));
}

// Somebody has made the directory of the next step, and is about to write to it.
TEST(CheckpointCatalog, KeepsANewEmptyDirectory) {
  const auto disk = std::make_shared<Disk>();
  MemoryFileSystem files(disk);
  write_checkpoint(files, {2, 6}, 3);
  files.make_directory("job/step-00000007");
  files.make_directory("job/step-00000005");
  EXPECT_THAT(prune_checkpoints(files, "job", {}).removed, ElementsAre(5));
  EXPECT_TRUE(disk->exists("job/step-00000007"));
}

TEST(CheckpointCatalog, ReportsFilesThatCannotBeRemoved) {
  const auto disk = std::make_shared<Disk>();
  MemoryFileSystem files(disk);
  for (std::int64_t k = 1; k <= 3; ++k) write_checkpoint(files, {1, k}, 3);
  disk->fault = [](std::size_t, const std::string& operation, const std::string& path) {
    return operation == "remove" && path.starts_with("job/step-00000002") ? EACCES : 0;
  };
  const Pruned pruned = prune_checkpoints(files, "job", {.keep_last = 1});
  EXPECT_THAT(pruned.removed, ElementsAre(1));
  EXPECT_THAT(pruned.problems, ElementsAre(HasSubstr("step-00000002/manifest.json: Permission denied")));
}

}  // namespace
}  // namespace ckpt::persist::test
