// Shards with known bytes, and checkpoints made of them, for tests of storage.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arena/layout.hpp"
#include "kernels/digest.hpp"
#include "persist/checkpoint_catalog.hpp"
#include "persist/checkpoint_writer.hpp"
#include "persist/shard_reader.hpp"
#include "persist/transfer.hpp"
#include "tests/kernels/random_bytes.hpp"

namespace ckpt::persist::test {

// The name of a test that runs with this errno.
inline std::string error_name(const testing::TestParamInfo<int>& error) { return strerrorname_np(error.param); }

// Calls what must fail, and returns the sentence of the Failure.
template <class Call>
std::string refusal(ckpt_status status, Call call) {
  try {
    call();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.status(), status) << failure.what();
    return failure.what();
  }
  return "accepted";
}

inline arena::LayoutEntry tensor(const std::string& name, ckpt_dtype dtype, std::vector<std::int64_t> shape) {
  return {name, dtype, std::move(shape), 0, 0};
}

// Every element type, a scalar and an empty tensor; the length is no multiple of anything.
inline arena::Layout mixed_layout(std::int64_t elements) {
  return arena::pack({tensor("weight", CKPT_F32, {elements, 3}), tensor("moment", CKPT_BF16, {elements}),
                      tensor("mask", CKPT_BOOL, {elements}), tensor("step", CKPT_I64, {}),
                      tensor("empty", CKPT_F16, {0, 5}), tensor("rng", CKPT_U8, {elements, 7})});
}

inline std::shared_ptr<arena::Manifest> manifest_for(const std::string& shard, CheckpointId checkpoint,
                                                     std::string layout, const std::vector<std::byte>& data) {
  auto manifest = std::make_shared<arena::Manifest>();
  manifest->shard = shard;
  manifest->checkpoint = checkpoint;
  manifest->world_size = 2;
  manifest->length_bytes = data.size();
  manifest->layout = std::move(layout);
  manifest->layout_hash = arena::layout_hash(manifest->layout);
  manifest->leaves.resize(kernels::leaf_count(data.size()));
  kernels::digest_leaves(data.data(), data.size(), manifest->leaves.data());
  manifest->root_digest = kernels::root_digest(manifest->leaves, data.size());
  return manifest;
}

// Reads the whole checkpoint. Returns the problem as a sentence, or nothing.
inline std::string verify_checkpoint(FileSystem& files, const CheckpointRecord& stored) {
  try {
    for (const ShardRecord& shard : stored.shards) ShardReader(files, stored, shard.shard).verify();
  } catch (const StorageError& error) {
    if (error.is_about_storage()) throw;
    return error.what();
  } catch (const Failure& failure) {
    return failure.what();
  }
  return {};
}

// The newest checkpoint whose bytes are all right. `problems` says what is wrong with newer ones, and with those whose
// age is unknown.
struct NewestComplete {
  std::optional<CheckpointRecord> stored;
  std::vector<std::string> problems;
};

inline NewestComplete find_complete_checkpoint(FileSystem& files, const std::string& job) {
  NewestComplete found;
  for (StoredCheckpoint& stored : list_checkpoints(files, job)) {
    std::string problem = stored.problem;
    if (stored.usable() && !found.stored) {
      problem = verify_checkpoint(files, *stored.record);
      if (problem.empty()) found.stored = std::move(stored.record);
    }
    if (!problem.empty()) found.problems.push_back(std::move(problem));
  }
  return found;
}

struct Sample {
  std::vector<std::byte> bytes;
  Piece piece;
};

// Allocates memory that transfers past the page cache can use, as the arena's slots are.
inline Sample sample(const std::string& shard, CheckpointId checkpoint, const arena::Layout& layout) {
  Sample made;
  made.bytes = kernels::random_bytes(checkpoint.word() ^ std::hash<std::string>()(shard), layout.length_bytes);
  const auto memory = make_aligned_buffer(made.bytes.size());
  if (!made.bytes.empty()) std::memcpy(memory.get(), made.bytes.data(), made.bytes.size());
  made.piece = {manifest_for(shard, checkpoint, arena::layout_text(layout), made.bytes), memory.get(), memory};
  return made;
}
inline Sample sample(const std::string& shard, CheckpointId checkpoint, std::int64_t elements = 3200) {
  return sample(shard, checkpoint, mixed_layout(elements));
}

// Part `index` of `of` as a node captures it that shares the shard with others.
inline Piece part_of(const Sample& whole, std::uint32_t index, std::uint32_t of) {
  const arena::Manifest& manifest = *whole.piece.manifest;
  const std::string name = core::part_name(manifest.shard, index, of);
  const auto range = arena::range_of({manifest.shard, index, of}, whole.bytes.size());
  const auto begin = whole.bytes.begin() + static_cast<std::ptrdiff_t>(range.first_byte);
  const std::vector<std::byte> bytes(begin, begin + static_cast<std::ptrdiff_t>(range.size_bytes));
  return {manifest_for(name, manifest.checkpoint, manifest.layout, bytes), whole.piece.data + range.first_byte,
          whole.piece.owner};
}

inline const std::vector<std::string> two_shards = {"rank0", "rank1"};

inline CheckpointWriter writer_on(FileSystem& files, const std::string& job = "job") {
  static RateLimiterClock clock;
  static RateLimiter unlimited(0, clock);
  return {files, job, "node-a", unlimited};
}

// A checkpoint of two shards: `model` was cut into parts, `rank0` was not.
struct CutCheckpoint {
  Sample model, rank0;
  std::uint32_t of = 0;

  CutCheckpoint(CheckpointId checkpoint, std::uint32_t parts, std::int64_t elements = 9000)
      : model(sample("model", checkpoint, elements)), rank0(sample("rank0", checkpoint, 100)), of(parts) {}

  CheckpointId checkpoint() const { return rank0.piece.manifest->checkpoint; }
  Piece piece(const std::string& name) const {
    return name == "rank0" ? rank0.piece : part_of(model, core::parse_part(name).index, of);
  }
  std::vector<std::string> names() const {
    auto names = core::parts_of("model", of);
    names.emplace_back("rank0");
    return names;
  }
  // Each piece is captured on a node of its own.
  void write(FileSystem& files, const std::string& name) const {
    RateLimiterClock clock;
    RateLimiter unlimited(0, clock);
    CheckpointWriter(files, "job", "node-" + name, unlimited).write(piece(name));
  }
  void write(FileSystem& files) const {
    for (const std::string& name : names()) write(files, name);
  }
  CheckpointRecord commit(FileSystem& files) const;
  CheckpointRecord write_and_commit(FileSystem& files) const {
    write(files);
    return commit(files);
  }
};

// A whole checkpoint of two shards.
inline CheckpointRecord write_checkpoint(FileSystem& files, CheckpointId checkpoint, std::int64_t elements = 3200) {
  CheckpointWriter writer = writer_on(files);
  for (const std::string& shard : two_shards) writer.write(sample(shard, checkpoint, elements).piece);
  return writer.commit(checkpoint, 2, two_shards);
}

inline std::vector<std::byte> read_all(FileSystem& files, const CheckpointRecord& stored, const std::string& shard) {
  ShardReader reader(files, stored, shard);
  std::vector<std::byte> bytes(reader.manifest().length_bytes);
  reader.read({0, bytes.size()}, bytes.data());
  return bytes;
}

inline CheckpointRecord CutCheckpoint::commit(FileSystem& files) const {
  return writer_on(files).commit(checkpoint(), 2, names());
}

// Whether a checkpoint holds what was captured, piece by piece; throws where it does not even pass its digests.
inline bool holds(FileSystem& files, const CheckpointRecord& stored, const CutCheckpoint& captured) {
  for (const std::string& name : captured.names()) {
    const Piece piece = captured.piece(name);
    if (ShardReader(files, stored, name).manifest() != *piece.manifest) return false;
    const auto bytes = read_all(files, stored, name);
    if (!bytes.empty() && std::memcmp(bytes.data(), piece.data, bytes.size()) != 0) return false;
  }
  return stored.shards.size() == captured.names().size();
}

// Whether both shards hold what write_checkpoint() wrote; throws where they do not even pass their digests.
inline bool holds_what_was_written(FileSystem& files, const CheckpointRecord& stored, std::int64_t elements = 3200) {
  for (const std::string& shard : two_shards)
    if (read_all(files, stored, shard) != sample(shard, stored.checkpoint, elements).bytes) return false;
  return true;
}

// Two that see the same directory write the parts of a shard in turn.
inline void expect_several_fill_one_file(FileSystem& files, FileSystem& others) {
  const CutCheckpoint captured({1, 7}, 3, 60'001);
  captured.write(files, "model.2of3");
  captured.write(others, "model.0of3");
  captured.write(files, "rank0");
  captured.write(others, "model.1of3");
  const CheckpointRecord stored = captured.commit(files);
  EXPECT_TRUE(holds(others, stored, captured));
  EXPECT_EQ(captured.commit(others), stored);
  EXPECT_EQ(others.list("job/step-00000007").size(), 11u);
}

}  // namespace ckpt::persist::test
