// The power goes before every single operation of a checkpoint's writing, pruning included, and whatever was not synced
// is lost, kept or torn: the machine that comes back finds the checkpoint before or the new one, whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "memory_file_system.hpp"
#include "support.hpp"

namespace ckpt::persist::test {
namespace {

constexpr int some_cuts = 12;  // seeds of what survives, for each place of the cut

// Writes checkpoint 1, then does `work` with a cut before every operation, and checks what each machine finds that
// comes back.
template <class Work, class Check>
void cut_everywhere(Work work, Check check) {
  for (std::size_t at = 0;; ++at) {
    const auto disk = std::make_shared<Disk>();
    MemoryFileSystem files(disk, {.queue_depth = 2, .block_bytes = 65536});
    write_checkpoint(files, {1, 1});
    disk->power_cut_before = disk->operations() + at;
    bool cut = false;
    try {
      work(files);
    } catch (const PowerCut&) {
      cut = true;
    }
    for (int seed = 0; seed < some_cuts + 2; ++seed) {
      const auto survives = seed == 0   ? Disk::Survives::nothing
                            : seed == 1 ? Disk::Survives::everything
                                        : Disk::Survives::some;
      const auto later = disk->after_power_cut(survives, seed);
      MemoryFileSystem found(later, {.queue_depth = 2, .block_bytes = 65536});
      SCOPED_TRACE("cut before operation " + std::to_string(at) + ", seed " + std::to_string(seed));
      check(found, *later, cut);
    }
    if (!cut) {
      EXPECT_GT(at, 10u);
      return;
    }
  }
}

TEST(PowerCut, LeavesTheOldOrTheNewCheckpointComplete) {
  std::size_t old_found = 0, new_found = 0;
  cut_everywhere(
      [](FileSystem& files) {
        write_checkpoint(files, {1, 2});
      },
      [&](FileSystem& files, Disk&, bool cut) {
        const NewestComplete found = find_complete_checkpoint(files, "job");
        ASSERT_TRUE(found.stored);
        EXPECT_TRUE(holds_what_was_written(files, *found.stored));
        // What the listing takes for usable is not only the newest but truly whole.
        for (const StoredCheckpoint& stored : list_checkpoints(files, "job")) {
          if (stored.usable()) {
            EXPECT_EQ(verify_checkpoint(files, *stored.record), "");
          }
        }
        if (!cut) {
          EXPECT_EQ(found.stored->checkpoint.iteration(), 2);
        }
        ++(found.stored->checkpoint.iteration() == 2 ? new_found : old_found);
      });
  EXPECT_GT(old_found, 100u);
  EXPECT_GT(new_found, some_cuts);
}

TEST(PowerCut, LeavesTheOldCheckpointOrItsReplacementByAnotherIncarnation) {
  cut_everywhere(
      [](FileSystem& files) {
        write_checkpoint(files, {2, 1});
      },
      [&](FileSystem& files, Disk&, bool cut) {
        const NewestComplete found = find_complete_checkpoint(files, "job");
        ASSERT_TRUE(found.stored);
        EXPECT_TRUE(holds_what_was_written(files, *found.stored));
        if (!cut) {
          EXPECT_EQ(found.stored->checkpoint, CheckpointId(2, 1));
        }
      });
}

// Every name without .part or .parts stands for whole bytes, even if its checkpoint never became whole.
void expect_whole_files(Disk& disk, const CutCheckpoint& captured) {
  const std::string directory = "job/" + folder_name(captured.checkpoint().iteration()) + "/";
  const std::uint64_t incarnation = captured.checkpoint().incarnation();
  for (const std::string& name : captured.names()) {
    const Piece piece = captured.piece(name);
    const Header header = encode_header(*piece.manifest, "job");
    const ShardRecord record = describe(*piece.manifest, header, "node-" + name);
    const std::string data = directory + data_file_name(name, incarnation);
    const bool is_written = disk.exists(directory + file_name(name, incarnation, record_suffix));
    const bool is_in_place = disk.exists(data);
    if (!is_written && !is_in_place) continue;
    const std::string& file = disk.bytes(is_in_place ? data : data + std::string(parts_suffix));
    if (is_in_place) {
      EXPECT_EQ(file.size(), record.file_bytes());
      EXPECT_EQ(file.substr(0, record.header_bytes), header.bytes);
    }
    EXPECT_EQ(std::memcmp(file.data() + record.offset_bytes, piece.data, record.data_bytes), 0);
    EXPECT_TRUE(!is_written || disk.exists(directory + file_name(name, incarnation, leaves_suffix)));
  }
}

// Nodes write the parts of a shard in any order, one of them completes the checkpoint. After the cut they do it all
// again.
TEST(PowerCut, LeavesPartsCompleteOrToBeWrittenAgain) {
  const CutCheckpoint captured({1, 2}, 3);
  std::size_t old_found = 0, new_found = 0;
  const auto work = [&](FileSystem& files) {
    for (const std::string name : {"model.2of3", "rank0", "model.0of3", "model.1of3"}) captured.write(files, name);
    captured.commit(files);
  };
  cut_everywhere(work, [&](FileSystem& files, Disk& disk, bool cut) {
    const NewestComplete found = find_complete_checkpoint(files, "job");
    ASSERT_TRUE(found.stored);
    const bool is_new = found.stored->checkpoint == captured.checkpoint();
    EXPECT_TRUE(cut || is_new);
    EXPECT_TRUE(is_new ? holds(files, *found.stored, captured) : holds_what_was_written(files, *found.stored));
    expect_whole_files(disk, captured);
    for (const StoredCheckpoint& stored : list_checkpoints(files, "job"))
      EXPECT_EQ(stored.usable(), disk.exists("job/" + folder_name(stored.iteration) + "/manifest.json"))
          << stored.problem;
    ++(is_new ? new_found : old_found);
    captured.write(files);
    EXPECT_TRUE(holds(files, captured.commit(files), captured));
    EXPECT_TRUE(holds(files, *find_complete_checkpoint(files, "job").stored, captured));
  });
  EXPECT_GT(old_found, 100u);
  EXPECT_GT(new_found, some_cuts);
}

// The power goes while a checkpoint of parts is removed, and its writers come back and write it again: what is left of
// the removal does not pass for parts that were written.
TEST(PowerCut, DuringARemovalLeavesNoRecordOfMissingParts) {
  const CutCheckpoint captured({1, 2}, 3);
  const auto work = [&](FileSystem& files) {
    captured.write(files);
    remove_checkpoint(files, "job", 2);
  };
  cut_everywhere(work, [&](FileSystem& files, Disk& disk, bool) {
    expect_whole_files(disk, captured);
    captured.write(files, "model.2of3");
    try {
      captured.commit(files);
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.status(), CKPT_ERR_LOST) << failure.what();
    }
    for (const StoredCheckpoint& stored : list_checkpoints(files, "job")) {
      if (stored.usable()) {
        EXPECT_EQ(verify_checkpoint(files, *stored.record), "");
      }
    }
  });
}

// The same where one node discards what it wrote of a checkpoint that failed.
TEST(PowerCut, DuringADiscardLeavesNoCheckpointOfItsParts) {
  const CutCheckpoint captured({1, 2}, 3);
  const auto work = [&](FileSystem& files) {
    captured.write(files);
    writer_on(files).discard({1, 2}, captured.names());
  };
  cut_everywhere(work, [&](FileSystem& files, Disk& disk, bool cut) {
    expect_whole_files(disk, captured);
    if (!cut) {
      for (const DirectoryEntry& entry : files.list("job/step-00000002"))
        EXPECT_FALSE(entry.name.ends_with(record_suffix)) << entry.name;
    }
    captured.write(files, "model.2of3");
    try {
      EXPECT_TRUE(holds(files, captured.commit(files), captured));
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.status(), CKPT_ERR_LOST) << failure.what();
    }
  });
}

// Whoever is told that a shard is written may rely on it, and a record on the files that it describes.
TEST(PowerCut, LeavesAShardsRecordOnlyWithItsFiles) {
  const auto work = [](FileSystem& files) { writer_on(files).write(sample("rank0", {1, 2}).piece); };
  cut_everywhere(work, [&](FileSystem&, Disk& disk, bool cut) {
    const auto path = [](std::string_view suffix) { return "job/step-00000002/" + file_name("rank0", 1, suffix); };
    EXPECT_TRUE(cut || disk.exists(path(record_suffix)));
    if (!disk.exists(path(record_suffix))) return;
    const auto record = decode_record(disk.bytes(path(record_suffix)), "the record").shards.front();
    ASSERT_TRUE(disk.exists(path(data_suffix)) && disk.exists(path(leaves_suffix)));
    EXPECT_EQ(disk.bytes(path(data_suffix)).size(), record.file_bytes());
    EXPECT_EQ(digest_of(disk.bytes(path(data_suffix)).substr(0, record.header_bytes)), record.header_digest);
    EXPECT_EQ(disk.bytes(path(leaves_suffix)).size(), record.leaves_bytes());
  });
}

TEST(PowerCut, NeverLeavesAHalfRemovedCheckpoint) {
  const auto work = [](FileSystem& files) {
    write_checkpoint(files, {1, 2});
    write_checkpoint(files, {1, 3});
    prune_checkpoints(files, "job", {.keep_last = 1});
  };
  cut_everywhere(work, [&](FileSystem& files, Disk& disk, bool cut) {
    const NewestComplete found = find_complete_checkpoint(files, "job");
    ASSERT_TRUE(found.stored);
    EXPECT_TRUE(holds_what_was_written(files, *found.stored));
    for (const StoredCheckpoint& stored : list_checkpoints(files, "job")) {
      EXPECT_EQ(stored.usable(), disk.exists("job/" + folder_name(stored.iteration) + "/manifest.json"))
          << stored.problem;
      if (stored.usable()) {
        EXPECT_EQ(verify_checkpoint(files, *stored.record), "");
      }
    }
    if (cut) return;
    EXPECT_EQ(found.stored->checkpoint.iteration(), 3);
    EXPECT_FALSE(disk.exists("job/step-00000001"));
    EXPECT_FALSE(disk.exists("job/step-00000002"));
  });
}

// What is left of a removal that the power cut short is gone after the next.
TEST(PowerCut, DuringARemovalIsRepairedByTheNextOne) {
  const auto work = [](FileSystem& files) {
    write_checkpoint(files, {1, 2});
    prune_checkpoints(files, "job", {.keep_last = 1});
  };
  cut_everywhere(work, [&](FileSystem& files, Disk& disk, bool) {
    write_checkpoint(files, {1, 4});
    prune_checkpoints(files, "job", {.keep_last = 1});
    EXPECT_EQ(list_checkpoints(files, "job").size(), 1u);
    EXPECT_FALSE(disk.exists("job/step-00000001"));
  });
}

}  // namespace
}  // namespace ckpt::persist::test
