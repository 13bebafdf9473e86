// Encodes and decodes the files of a checkpoint on storage. docs/formats.md specifies them:
//
//   JOB/step-00000123/
//     SHARD.1.safetensors   the shard's tensors, aligned; 1 is the incarnation
//     PIECE.1.leaves        leaf digests of a piece; PIECE is a whole shard (SHARD) or a part of one (SHARD.2of4)
//     PIECE.1.json          the piece's record, written once the piece's bytes and leaf digests are on the medium
//     manifest.json         the checkpoint's record, written last; without it, the checkpoint is not complete
//
// Plain values and pure functions. Any thread may use them. The decoders check everything that they read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arena/manifest.hpp"
#include "core/types.hpp"

namespace ckpt::persist {

inline constexpr int format_version = 1;
inline constexpr std::size_t data_alignment_bytes = 4096;
inline constexpr std::size_t header_max_bytes = 100'000'000;  // the limit of safetensors readers
inline constexpr std::size_t record_max_bytes = std::size_t{1} << 28;
// The tensor that represents bytes without a layout: U8, one element per byte.
inline constexpr std::string_view opaque_tensor_name = "ckptengine.opaque";

// The record of a piece. It also says which range of the shard's file the piece fills. A shard that is not divided into
// parts fills all data of its file.
struct ShardRecord {
  std::string shard;               // name of the piece: "model", or "model.2of4"
  std::uint64_t header_bytes = 0;  // bytes of the safetensors file before its data
  std::uint64_t header_digest = 0;
  std::uint64_t whole_bytes = 0;   // size of the whole shard, which is the file's data
  std::uint64_t offset_bytes = 0;  // offset of the piece's first byte in the file
  std::uint64_t data_bytes = 0;    // size of the piece
  std::uint64_t root_digest = 0;
  std::uint64_t layout_bytes = 0;  // size of the whole shard's layout text
  std::uint64_t layout_hash = 0;
  std::string written_by;  // name of the node that wrote the piece

  std::uint64_t file_bytes() const { return header_bytes + whole_bytes; }
  std::uint64_t leaves_bytes() const;
  bool operator==(const ShardRecord&) const = default;
};

// True if the piece fills the range that its name implies: SHARD.2of4 fills the third quarter, because parts are
// numbered from 0.
bool lies_where_it_belongs(const ShardRecord& record);

// What a record's file says: all pieces of a checkpoint (manifest.json), or one piece (PIECE.1.json).
struct CheckpointRecord {
  enum class Kind { shard, checkpoint };

  Kind kind = Kind::checkpoint;
  std::string job;
  CheckpointId checkpoint;
  std::uint32_t world_size = 0;
  std::string written_by;           // name of the node that wrote the record
  std::vector<ShardRecord> shards;  // the pieces, sorted by name

  const ShardRecord* find(std::string_view shard) const;
  std::vector<core::PieceInfo> pieces() const;
  bool operator==(const CheckpointRecord&) const = default;
};

// A shard's safetensors file, and the pieces that fill it.
struct ShardFile {
  std::string shard;  // name of the whole shard
  std::string name;   // the file's name
  std::uint64_t header_bytes = 0;
  std::uint64_t file_bytes = 0;
  std::vector<const ShardRecord*> pieces;  // sorted by offset
};
// Returns the files of a checkpoint, sorted by shard. The results point into `stored`. Throws Failure
// (CKPT_ERR_CORRUPT) if a shard's pieces do not form one file.
std::vector<ShardFile> files_of(const CheckpointRecord& stored);

// Returns the text of the record's file.
std::string encode(const CheckpointRecord& record);
// Parses the text of a record's file. Throws Failure (CKPT_ERR_CORRUPT) if the text is not a record, or if a
// checkpoint's pieces do not form whole files. The error names the file (`label`) and what is wrong. The caller adds
// what to do.
CheckpointRecord decode_record(std::string_view text, const std::string& label);

// The name of a checkpoint's directory, "step-00000123", and the iteration in such a name.
std::string folder_name(std::int64_t iteration);
std::optional<std::int64_t> parse_folder_name(std::string_view name);

inline constexpr std::string_view manifest_name = "manifest.json";
inline constexpr std::string_view data_suffix = ".safetensors";
inline constexpr std::string_view leaves_suffix = ".leaves";
inline constexpr std::string_view record_suffix = ".json";
inline constexpr std::string_view part_suffix = ".part";    // a file that is not complete yet: RANDOM.part
inline constexpr std::string_view parts_suffix = ".parts";  // a shard's file that several nodes fill

std::string file_name(std::string_view shard, std::uint64_t incarnation, std::string_view suffix);
// The name of the file that contains the piece's bytes.
std::string data_file_name(std::string_view piece, std::uint64_t incarnation);
// Returns the incarnation in the name of a checkpoint's file, also of a file that is not complete yet. Returns nothing
// if no file of a checkpoint can have this name.
std::optional<std::uint64_t> incarnation_in(std::string_view file_name);

// The beginning of a shard's file, the same for all its pieces: length, JSON, and blanks up to a multiple of
// data_alignment_bytes. Throws Failure (CKPT_ERR_CORRUPT) if the manifest's layout does not fit its data.
struct Header {
  std::string bytes;
  std::uint64_t whole_bytes = 0;  // size of the data after the header
};
Header encode_header(const arena::Manifest& manifest, const std::string& job);
// Returns the record of a piece. `manifest` is the piece's, `header` that of the file, and `node` the node that writes
// the piece.
ShardRecord describe(const arena::Manifest& manifest, const Header& header, const std::string& node);
// Returns the layout text in a header. `label` names the file in messages. Throws Failure (CKPT_ERR_CORRUPT) if the
// header does not match the record.
std::string decode_header(std::string_view header, const ShardRecord& record, const std::string& label);

std::uint64_t digest_of(std::string_view bytes);

}  // namespace ckpt::persist
