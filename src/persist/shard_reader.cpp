#include "persist/shard_reader.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/copy_digest.hpp"
#include "persist/transfer.hpp"

namespace ckpt::persist {
namespace {

std::vector<std::uint64_t> words_of(const std::string& bytes) {
  std::vector<std::uint64_t> words(bytes.size() / sizeof(std::uint64_t));
  if (!words.empty()) std::memcpy(words.data(), bytes.data(), words.size() * sizeof(std::uint64_t));
  return words;
}

}  // namespace

ShardReader::ShardReader(FileSystem& files, const CheckpointRecord& stored, const std::string& shard) : files_(files) {
  const ShardRecord* const record = stored.find(shard);
  const std::string directory = stored.job + "/" + folder_name(stored.checkpoint.iteration());
  if (record == nullptr)
    throw Failure(CKPT_ERR_LOST, files.label(directory) + " has no shard \"" + shard +
                                     "\"; manifest.json in that folder names its shards");
  const auto path = [&](std::string_view suffix) {
    return directory + "/" + file_name(shard, stored.checkpoint.incarnation(), suffix);
  };
  data_path_ = directory + "/" + data_file_name(shard, stored.checkpoint.incarnation());
  begin_bytes_ = record->offset_bytes;
  const auto check_size = [&](const std::string& file, std::uint64_t expected_bytes) {
    const auto size = files.file_size(file);
    if (!size)
      throw Failure(CKPT_ERR_CORRUPT,
                    files.label(file) + " is missing, so this checkpoint cannot be read; use another one");
    if (*size != expected_bytes)
      throw Failure(CKPT_ERR_CORRUPT, files.label(file) + " is " + std::to_string(*size) +
                                          " bytes long, but should be " + std::to_string(expected_bytes) +
                                          ", so this checkpoint cannot be read; use another one");
  };
  check_size(data_path_, record->file_bytes());
  check_size(path(leaves_suffix), record->leaves_bytes());

  manifest_.shard = shard;
  manifest_.checkpoint = stored.checkpoint;
  manifest_.world_size = stored.world_size;
  manifest_.length_bytes = record->data_bytes;
  manifest_.root_digest = record->root_digest;
  manifest_.layout_hash = record->layout_hash;
  manifest_.layout =
      decode_header(read_begin(files, data_path_, record->header_bytes), *record, files.label(data_path_));
  manifest_.leaves = words_of(read_begin(files, path(leaves_suffix), record->leaves_bytes()));
  if (!arena::is_consistent(manifest_))
    throw Failure(CKPT_ERR_CORRUPT,
                  files.label(path(leaves_suffix)) +
                      " is damaged: its digest does not match, so this checkpoint cannot be read; use another one");
}

void ShardReader::refuse_leaf(std::size_t leaf) const {
  const std::uint64_t begin = begin_bytes_ + std::uint64_t{leaf} * kernels::leaf_size_bytes;
  const std::uint64_t end = begin + kernels::leaf_length(manifest_.length_bytes, leaf);
  throw Failure(CKPT_ERR_CORRUPT, files_.label(data_path_) + " is damaged between bytes " + std::to_string(begin) +
                                      " and " + std::to_string(end) + ": leaf " + std::to_string(leaf) +
                                      " does not match its digest");
}

// `data` holds whole leaves, the first at `offset` in the piece. Verifies them, and copies the bytes of the range
// `wanted` among them to their place in `destination`.
void ShardReader::take(std::uint64_t offset, const std::byte* data, std::size_t size_bytes, ByteRange wanted,
                       std::byte* destination) const {
  const std::size_t first = offset / kernels::leaf_size_bytes;
  const std::uint64_t* const expected = manifest_.leaves.data() + first;
  const std::size_t count = kernels::leaf_count(size_bytes);
  std::optional<std::size_t> bad;
  const std::uint64_t begin = std::max(offset, wanted.offset_bytes);
  const std::uint64_t end = std::min(offset + size_bytes, wanted.offset_bytes + wanted.size_bytes);
  if (destination != nullptr && begin == offset && end == offset + size_bytes) {
    const std::array target = {kernels::Target{destination + (begin - wanted.offset_bytes), size_bytes}};
    const std::array<std::size_t, 2> offsets = {0, size_bytes};
    bad = kernels::scatter_leaves(target, offsets, data, 0, count, expected);
  } else {
    bad = kernels::verify_leaves(data, size_bytes, 0, count, expected);
    if (!bad && destination != nullptr && begin < end)
      std::memcpy(destination + (begin - wanted.offset_bytes), data + (begin - offset), end - begin);
  }
  if (bad) refuse_leaf(first + *bad);
}

void ShardReader::read_leaves(ByteRange range, std::byte* destination) {
  const std::uint64_t length = manifest_.length_bytes;
  if (range.offset_bytes > length || range.size_bytes > length - range.offset_bytes)
    throw Failure(CKPT_ERR_INVALID, "shard " + manifest_.shard + " has " + std::to_string(length) +
                                        " bytes, and a read of " + std::to_string(range.size_bytes) +
                                        " bytes at byte " + std::to_string(range.offset_bytes) + " goes beyond them");
  const std::uint64_t end = range.offset_bytes + range.size_bytes;
  std::uint64_t next = range.offset_bytes / kernels::leaf_size_bytes * kernels::leaf_size_bytes;
  if (range.size_bytes == 0) return;
  read_blocks(
      files_, data_path_,
      [&](Extent& extent) {
        if (next >= end) return false;
        const std::uint64_t leaves_end =
            (end + kernels::leaf_size_bytes - 1) / kernels::leaf_size_bytes * kernels::leaf_size_bytes;
        const std::uint64_t size_bytes =
            std::min({std::uint64_t{files_.options().block_bytes}, leaves_end - next, length - next});
        extent = {begin_bytes_ + next, size_bytes};
        next += size_bytes;
        return true;
      },
      [&](const Extent& extent, const std::byte* data) {
        take(extent.offset - begin_bytes_, data, extent.size_bytes, range, destination);
      });
}

void ShardReader::read(ByteRange range, std::byte* destination) { read_leaves(range, destination); }

void ShardReader::verify() { read_leaves({0, manifest_.length_bytes}, nullptr); }

}  // namespace ckpt::persist
