// Shards with reproducible contents, and the steps made of them.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "arena/layout.hpp"
#include "kernels/digest.hpp"
#include "persist/shard_reader.hpp"
#include "persist/step_catalog.hpp"
#include "persist/step_writer.hpp"
#include "persist/transfer.hpp"
#include "tests/kernels/random_bytes.hpp"

namespace ckpt::persist::test {

inline arena::LayoutEntry tensor(const std::string& name, ckpt_dtype dtype, std::vector<std::int64_t> shape) {
  return {name, dtype, std::move(shape), 0, 0};
}

// Every element type, a scalar and an empty tensor; the length is no multiple of anything.
inline arena::Layout mixed_layout(std::int64_t elements) {
  return arena::pack({tensor("weight", CKPT_F32, {elements, 3}), tensor("moment", CKPT_BF16, {elements}),
                      tensor("mask", CKPT_BOOL, {elements}), tensor("step", CKPT_I64, {}),
                      tensor("empty", CKPT_F16, {0, 5}), tensor("rng", CKPT_U8, {elements, 7})});
}

inline std::shared_ptr<arena::Manifest> manifest_for(const std::string& shard, Version version, std::string layout,
                                                     const std::vector<std::byte>& data) {
  auto manifest = std::make_shared<arena::Manifest>();
  manifest->shard = shard;
  manifest->version = version;
  manifest->world_size = 2;
  manifest->length_bytes = data.size();
  manifest->layout = std::move(layout);
  manifest->layout_hash = arena::layout_hash(manifest->layout);
  manifest->leaves.resize(kernels::leaf_count(data.size()));
  kernels::digest_leaves(data.data(), data.size(), manifest->leaves.data());
  manifest->root_digest = kernels::root_digest(manifest->leaves, data.size());
  return manifest;
}

struct Sample {
  std::vector<std::byte> bytes;
  Piece piece;
};

// In memory that transfers past the page cache can use, as a slot of the arena is.
inline Sample sample(const std::string& shard, Version version, const arena::Layout& layout) {
  Sample made;
  made.bytes = kernels::random_bytes(version.word() ^ std::hash<std::string>()(shard), layout.length_bytes);
  const auto memory = make_aligned_buffer(made.bytes.size());
  if (!made.bytes.empty()) std::memcpy(memory.get(), made.bytes.data(), made.bytes.size());
  made.piece = {manifest_for(shard, version, arena::layout_text(layout), made.bytes), memory.get(), memory};
  return made;
}
inline Sample sample(const std::string& shard, Version version, std::int64_t elements = 3200) {
  return sample(shard, version, mixed_layout(elements));
}

inline const std::vector<std::string> two_shards = {"rank0", "rank1"};

inline StepWriter writer_on(FileSystem& files, const std::string& job = "job") {
  static PaceClock clock;
  static Pace unlimited(0, clock);
  return {files, job, "node-a", unlimited};
}

// A whole step of two shards.
inline StepRecord write_step(FileSystem& files, Version version, std::int64_t elements = 3200) {
  StepWriter writer = writer_on(files);
  for (const std::string& shard : two_shards) writer.write(sample(shard, version, elements).piece);
  return writer.commit(version, 2, two_shards);
}

inline std::vector<std::byte> read_all(FileSystem& files, const StepRecord& step, const std::string& shard) {
  ShardReader reader(files, step, shard);
  std::vector<std::byte> bytes(reader.manifest().length_bytes);
  reader.read({0, bytes.size()}, bytes.data());
  return bytes;
}

// Whether both shards hold what write_step() wrote; throws where they do not even pass their digests.
inline bool holds_what_was_written(FileSystem& files, const StepRecord& step, std::int64_t elements = 3200) {
  for (const std::string& shard : two_shards)
    if (read_all(files, step, shard) != sample(shard, step.version, elements).bytes) return false;
  return true;
}

}  // namespace ckpt::persist::test
