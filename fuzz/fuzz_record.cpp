// Records of steps and pieces on storage: manifest.json and PIECE.json. What is taken names whole files, lies in bounds
// and is written as it was read.
#include "base/error.hpp"
#include "fuzz/fuzz.hpp"
#include "fuzz/samples.hpp"
#include "persist/storage_format.hpp"

namespace ckpt::fuzz {
namespace {

constexpr std::size_t seal_bytes = 28;

std::string sealed(const std::string& body) {
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(persist::digest_of(body)));
  return std::string("{\"xxh3\":\"") + digits + "\",\n" + body;
}

void try_text(const std::string& text) {
  persist::CheckpointRecord record;
  try {
    record = persist::decode_record(text, "x");
  } catch (const Failure& failure) {
    require(failure.status() == CKPT_ERR_CORRUPT);
    return;
  }
  require(persist::decode_record(persist::encode(record), "x") == record);
  require(record.pieces().size() == record.shards.size());
  for (const persist::ShardRecord& piece : record.shards)
    require(piece.offset_bytes + piece.data_bytes <= piece.file_bytes() && record.find(piece.shard) == &piece);
  if (record.kind == persist::CheckpointRecord::Kind::shard) return;
  for (const persist::ShardFile& file : persist::files_of(record)) {
    std::uint64_t end = file.header_bytes;
    for (const persist::ShardRecord* piece : file.pieces) {
      require(piece->offset_bytes == end);
      end += piece->data_bytes;
    }
    require(end == file.file_bytes);
  }
}

persist::ShardRecord piece_record(const std::string& name, std::int64_t elements) {
  const arena::Manifest manifest = sample_manifest(name, elements);
  return persist::describe(manifest, persist::encode_header(manifest, "job"), "node-a");
}

}  // namespace

void try_input(Input input) {
  const std::string text = text_of(input);
  try_text(text);
  try_text(sealed(text));
}

std::vector<std::string> seeds() {
  using persist::CheckpointRecord;
  persist::ShardRecord whole = piece_record("rank0", 10);
  // Of a shard of two leaves, and one of less than one.
  persist::ShardRecord first = piece_record("model", 10'000), last = first, empty = piece_record("model.1of2", 0);
  first.shard = "model.0of2";
  last.shard = "model.1of2";
  last.offset_bytes += 65536;
  last.data_bytes = first.whole_bytes - 65536;
  first.data_bytes = 65536;
  std::vector<std::string> texts = {
      persist::encode({CheckpointRecord::Kind::checkpoint, "job", {1, 123}, 2, "node-a", {first, last, whole}}),
      persist::encode({CheckpointRecord::Kind::shard, "job", {1, 123}, 2, "node-a", {whole}}),
      persist::encode({CheckpointRecord::Kind::shard, "job", {(1 << 24) - 1, 0}, 1, "node-a", {last}}),
      persist::encode({CheckpointRecord::Kind::shard, "job", {1, 123}, 2, "node-a", {empty}})};
  for (std::size_t i = texts.size(); i > 0; --i) texts.push_back(texts[i - 1].substr(seal_bytes));
  return texts;
}

}  // namespace ckpt::fuzz
