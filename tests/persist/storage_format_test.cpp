#include "persist/storage_format.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "memory_file_system.hpp"
#include "support.hpp"

namespace ckpt::persist::test {
namespace {

using testing::HasSubstr;

TEST(Format, MatchesTheDocumentedExample) {
  const CheckpointId checkpoint(1, 123);
  const auto shard = [&](const std::string& name, const arena::LayoutEntry& only) {
    Sample made;
    const arena::Layout layout = arena::pack({only});
    made.bytes = kernels::random_bytes(123, layout.length_bytes);
    made.piece = {manifest_for(name, checkpoint, arena::layout_text(layout), made.bytes), made.bytes.data(), nullptr};
    return made;
  };
  const Sample model = shard("model", tensor("w", CKPT_F32, {16388}));
  const Sample rng = shard("rank0.private", tensor("rng", CKPT_U8, {16}));
  const auto disk = std::make_shared<Disk>();
  MemoryFileSystem files(disk);
  CheckpointWriter writer = writer_on(files);
  for (const Piece& piece : {part_of(model, 0, 2), part_of(model, 1, 2), rng.piece}) writer.write(piece);
  writer.commit(checkpoint, 2, {"model.0of2", "model.1of2", "rank0.private"});
  std::ifstream document(CKPT_SOURCE_DIR "/docs/formats.md");
  const std::string format{std::istreambuf_iterator<char>(document), {}};
  EXPECT_THAT(format, HasSubstr("```json\n" + disk->bytes("job/step-00000123/manifest.json") + "```"));
}

TEST(Format, DecodesEncodedRecords) {
  CheckpointRecord stored{CheckpointRecord::Kind::checkpoint, "job", {3, 77}, 16, "node-b", {}};
  for (int i = 0; i < 3; ++i) {
    ShardRecord& shard = stored.shards.emplace_back();
    shard.shard = "rank" + std::to_string(i);
    shard.header_bytes = 4096 * (i + 1);
    shard.header_digest = UINT64_MAX - i;
    shard.offset_bytes = shard.header_bytes;
    shard.root_digest = i;
    shard.layout_bytes = i;
    shard.layout_hash = ~std::uint64_t{0} >> i;
    shard.written_by = "node" + std::to_string(i);
  }
  stored.shards[1].whole_bytes = stored.shards[1].data_bytes = 12345;
  stored.shards[2].whole_bytes = stored.shards[2].data_bytes = (std::uint64_t{1} << 53) - stored.shards[2].header_bytes;
  EXPECT_EQ(decode_record(encode(stored), "x"), stored);
  EXPECT_EQ(stored.find("rank1"), &stored.shards[1]);
  EXPECT_EQ(stored.find("rank"), nullptr);
}

TEST(Format, StoredPiecesMatchTheProtocolsPieces) {
  MemoryFileSystem files(std::make_shared<Disk>());
  const CutCheckpoint captured({3, 7}, 3);
  const auto pieces = captured.write_and_commit(files).pieces();
  ASSERT_EQ(pieces.size(), 4u);
  for (const core::PieceInfo& piece : pieces) {
    const arena::Manifest manifest = *captured.piece(piece.shard).manifest;
    EXPECT_EQ(piece, (core::PieceInfo{manifest.shard, manifest.checkpoint, manifest.length_bytes,
                                      manifest.layout.size(), manifest.root_digest, manifest.world_size}));
  }
}

TEST(Format, ParsesOnlyFolderNamesOfIterations) {
  for (const std::int64_t k :
       {std::int64_t{0}, std::int64_t{123}, std::int64_t{99'999'999}, CheckpointId::iteration_max})
    EXPECT_EQ(parse_folder_name(folder_name(k)), k);
  EXPECT_EQ(folder_name(123), "step-00000123");
  for (const std::string name : {"", "step-", "step-1", "step-000000001", "step--0000001", "step-+0000001",
                                 "step-0000000x", "step-99999999999999", "Step-00000001", "step-00000001 "})
    EXPECT_FALSE(parse_folder_name(name)) << name;
}

TEST(Format, FindsIncarnationsOnlyInOwnFileNames) {
  for (const std::string_view suffix : {data_suffix, leaves_suffix, record_suffix}) {
    for (const std::string shard : {"rank0", "rank0.private", "a.7", ".x", "manifest.json", "1"}) {
      const std::string name = file_name(shard, 42, suffix);
      EXPECT_EQ(incarnation_in(name), 42u) << name;
      EXPECT_EQ(incarnation_in(name + ".0123456789abcdef.part"), 42u) << name;
      EXPECT_EQ(incarnation_in(name + ".parts"), 42u) << name;
    }
  }
  for (const std::string name : {"", ".", ".part", ".parts", "manifest.json", "manifest.json.0123.part", "x",
                                 "x.safetensors", "x.y.leaves", "x.1.zst", "x.-1.json", "x.99999999999999999999.json"})
    EXPECT_FALSE(incarnation_in(name)) << name;
}

// Whatever somebody put there: a record or a header is refused with a Failure or taken, and what is taken makes sense.
TEST(Format, RefusesOrSafelyAcceptsAnyBytes) {
  const Sample rank0 = sample("rank0", {1, 1});
  const std::string header = encode_header(*rank0.piece.manifest, "job").bytes;
  ShardRecord shard = describe(*rank0.piece.manifest, encode_header(*rank0.piece.manifest, "job"), "node");
  const std::string record = encode({CheckpointRecord::Kind::shard, "job", {1, 1}, 2, "node", {shard}});
  std::mt19937_64 random(11);
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string damaged = round % 2 == 0 ? record : header;
    for (std::uint64_t edits = random() % 4 + 1; edits > 0 && !damaged.empty(); --edits) {
      const std::size_t at = random() % damaged.size();
      switch (random() % 3) {
        case 0:
          damaged[at] = static_cast<char>(random());
          break;
        case 1:
          damaged.erase(at, random() % 40);
          break;
        default:
          damaged.insert(at, damaged.substr(random() % damaged.size(), random() % 40));
      }
    }
    // With a digest that fits, so that what is behind it is looked at.
    try {
      if (round % 2 == 0) {
        if (damaged.size() < 28) continue;
        char digits[17];
        const auto digest = static_cast<unsigned long long>(digest_of(std::string_view(damaged).substr(28)));
        std::snprintf(digits, sizeof(digits), "%016llx", digest);
        damaged.replace(0, 28, std::string("{\"xxh3\":\"") + digits + "\",\n");
        const CheckpointRecord taken = decode_record(damaged, "x");
        EXPECT_EQ(taken.shards.size(), 1u);
        EXPECT_EQ(decode_record(encode(taken), "x"), taken);
      } else {
        shard.header_digest = digest_of(damaged);
        shard.header_bytes = damaged.size();
        EXPECT_EQ(decode_header(damaged, shard, "x"), rank0.piece.manifest->layout);
      }
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.status(), CKPT_ERR_CORRUPT) << failure.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 5000);
}

}  // namespace
}  // namespace ckpt::persist::test
