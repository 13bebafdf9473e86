// Shards with reproducible contents, and the steps made of them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arena/layout.hpp"
#include "arena/parts.hpp"
#include "kernels/digest.hpp"
#include "persist/shard_reader.hpp"
#include "persist/step_catalog.hpp"
#include "persist/step_writer.hpp"
#include "persist/transfer.hpp"
#include "tests/kernels/random_bytes.hpp"

namespace ckpt::persist::test {

// What a call that must fail says.
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

// Reads the whole step. Returns the problem as a sentence, or nothing.
inline std::string verify_step(FileSystem& files, const StepRecord& step) {
  try {
    for (const ShardRecord& shard : step.shards) ShardReader(files, step, shard.shard).verify();
  } catch (const StorageError& error) {
    if (error.is_about_storage()) throw;
    return error.what();
  } catch (const Failure& failure) {
    return failure.what();
  }
  return {};
}

// The newest step whose every byte is right, and what is wrong with steps that are newer or cannot be placed.
struct Found {
  std::optional<StepRecord> step;
  std::vector<std::string> problems;
};

inline Found find_whole_step(FileSystem& files, const std::string& job) {
  Found found;
  for (Step& step : list_steps(files, job)) {
    std::string problem = step.problem;
    if (step.usable() && !found.step) {
      problem = verify_step(files, *step.record);
      if (problem.empty()) found.step = std::move(step.record);
    }
    if (!problem.empty()) found.problems.push_back(std::move(problem));
  }
  return found;
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

// Part `index` of `of` as a node captures it that shares the shard with others.
inline Piece part_of(const Sample& whole, std::uint32_t index, std::uint32_t of) {
  const arena::Manifest& manifest = *whole.piece.manifest;
  const std::string name = protocol::part_name(manifest.shard, index, of);
  const auto range = arena::range_of({manifest.shard, index, of}, whole.bytes.size());
  const auto begin = whole.bytes.begin() + static_cast<std::ptrdiff_t>(range.first_byte);
  const std::vector<std::byte> bytes(begin, begin + static_cast<std::ptrdiff_t>(range.size_bytes));
  return {manifest_for(name, manifest.version, manifest.layout, bytes), whole.piece.data + range.first_byte,
          whole.piece.owner};
}

inline const std::vector<std::string> two_shards = {"rank0", "rank1"};

inline StepWriter writer_on(FileSystem& files, const std::string& job = "job") {
  static PaceClock clock;
  static Pace unlimited(0, clock);
  return {files, job, "node-a", unlimited};
}

// A step whose shard `model` was cut, beside one that was not.
struct CutStep {
  Sample model, rank0;
  std::uint32_t of = 0;

  CutStep(Version version, std::uint32_t parts, std::int64_t elements = 9000)
      : model(sample("model", version, elements)), rank0(sample("rank0", version, 100)), of(parts) {}

  Version version() const { return rank0.piece.manifest->version; }
  Piece piece(const std::string& name) const {
    return name == "rank0" ? rank0.piece : part_of(model, protocol::parse_part(name).index, of);
  }
  std::vector<std::string> names() const {
    auto names = protocol::parts_of("model", of);
    names.emplace_back("rank0");
    return names;
  }
  // Each piece is captured on a node of its own.
  void write(FileSystem& files, const std::string& name) const {
    PaceClock clock;
    Pace unlimited(0, clock);
    StepWriter(files, "job", "node-" + name, unlimited).write(piece(name));
  }
  void write(FileSystem& files) const {
    for (const std::string& name : names()) write(files, name);
  }
  StepRecord commit(FileSystem& files) const;
  StepRecord write_and_commit(FileSystem& files) const {
    write(files);
    return commit(files);
  }
};

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

inline StepRecord CutStep::commit(FileSystem& files) const { return writer_on(files).commit(version(), 2, names()); }

// Whether a step holds what was captured, piece by piece; throws where it does not even pass its digests.
inline bool holds(FileSystem& files, const StepRecord& step, const CutStep& captured) {
  for (const std::string& name : captured.names()) {
    const Piece piece = captured.piece(name);
    if (ShardReader(files, step, name).manifest() != *piece.manifest) return false;
    const auto bytes = read_all(files, step, name);
    if (!bytes.empty() && std::memcmp(bytes.data(), piece.data, bytes.size()) != 0) return false;
  }
  return step.shards.size() == captured.names().size();
}

// Whether both shards hold what write_step() wrote; throws where they do not even pass their digests.
inline bool holds_what_was_written(FileSystem& files, const StepRecord& step, std::int64_t elements = 3200) {
  for (const std::string& shard : two_shards)
    if (read_all(files, step, shard) != sample(shard, step.version, elements).bytes) return false;
  return true;
}

// Two that see the same directory write the parts of a shard in turn.
inline void expect_several_fill_one_file(FileSystem& files, FileSystem& others) {
  const CutStep captured({1, 7}, 3, 60'001);
  captured.write(files, "model.2of3");
  captured.write(others, "model.0of3");
  captured.write(files, "rank0");
  captured.write(others, "model.1of3");
  const StepRecord step = captured.commit(files);
  EXPECT_TRUE(holds(others, step, captured));
  EXPECT_EQ(captured.commit(others), step);
  EXPECT_EQ(others.list("job/step-00000007").size(), 11u);
}

}  // namespace ckpt::persist::test
