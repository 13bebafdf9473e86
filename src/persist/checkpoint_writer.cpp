#include "persist/checkpoint_writer.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "kernels/copy_digest.hpp"
#include "options/options.hpp"
#include "persist/transfer.hpp"

namespace ckpt::persist {
namespace {

// Throws, which ends the write, if the bytes in memory differ from the captured ones.
void check_leaves(const Piece& piece, std::uint64_t offset, std::size_t size_bytes) {
  const arena::Manifest& manifest = *piece.manifest;
  const std::size_t first = offset / kernels::leaf_size_bytes;
  const std::size_t last = first + kernels::leaf_count(size_bytes);
  const auto bad = kernels::verify_leaves(piece.data, manifest.length_bytes, first, last, manifest.leaves.data());
  if (bad)
    throw Failure(CKPT_ERR_CORRUPT, "leaf " + std::to_string(*bad) + " of shard " + manifest.shard +
                                        " changed in memory since it was captured, so this checkpoint is not written; "
                                        "a later one will be. If this happens again, test the machine's memory");
}

std::string bytes_of(const std::vector<std::uint64_t>& words) {
  std::string bytes(words.size() * sizeof(std::uint64_t), '\0');
  if (!words.empty()) std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

bool is_same_piece(ShardRecord a, const ShardRecord& b) {
  a.written_by = b.written_by;
  return a == b;
}

bool are_same_pieces(const CheckpointRecord& a, const CheckpointRecord& b) {
  return std::equal(a.shards.begin(), a.shards.end(), b.shards.begin(), b.shards.end(), is_same_piece);
}

[[noreturn]] void refuse_other_bytes(const std::string& path) {
  throw Failure(CKPT_ERR_CORRUPT,
                path +
                    " describes other bytes than this job has for the same checkpoint. If another job of this name "
                    "writes to this storage, rename one of them; otherwise remove this checkpoint (ckptctl rm)");
}

}  // namespace

CheckpointWriter::CheckpointWriter(FileSystem& files, std::string job, std::string node, RateLimiter& rate_limiter)
    : files_(files), job_(std::move(job)), node_(std::move(node)), rate_limiter_(rate_limiter) {
  const auto require_name = [](const char* option, const std::string& name) {
    if (!is_plain_name(name))
      throw Failure(CKPT_ERR_INVALID, std::string("the option ") + option + " has the value \"" + name +
                                          "\", but must be 1 to 64 characters of A-Z a-z 0-9 . _ -");
  };
  require_name("job", job_);
  require_name("node", node_);
}

// Syncs the parents even if the directory exists: another node may have made it and not have synced them yet.
void CheckpointWriter::make_checkpoint_directory(const std::string& directory) {
  if (directory == made_directory_) return;
  require_location(files_);
  files_.make_directory(job_);
  files_.sync_directory("");
  files_.make_directory(directory);
  files_.sync_directory(job_);
  made_directory_ = directory;
}

// The first piece of a file also writes the header.
void CheckpointWriter::write_data(const Piece& piece, const std::string& header, const ShardRecord& record,
                                  const std::string& path) {
  const std::size_t block_bytes = files_.options().block_bytes;  // whole leaves, so that each can be checked alone
  const core::ShardPart part = core::parse_part(record.shard);
  const auto head = make_aligned_buffer(header.size());
  std::memcpy(head.get(), header.data(), header.size());
  bool is_header_due = part.index == 0;
  std::uint64_t next = 0;
  const auto next_block = [&](Block& block) {
    if (is_header_due) {
      block = {0, head.get(), header.size(), head};
      is_header_due = false;
    } else if (next < record.data_bytes) {
      block = {record.offset_bytes + next, piece.data + next,
               std::min<std::size_t>(block_bytes, record.data_bytes - next), piece.owner};
      check_leaves(piece, next, block.size_bytes);
      next += block.size_bytes;
    } else {
      return false;
    }
    rate_limiter_.take(block.size_bytes, files_.options().stop);
    return true;
  };
  if (part.of == 1) {
    write_whole(files_, path, record.file_bytes(), next_block);
  } else {
    write_some(files_, path + std::string(parts_suffix), record.file_bytes(), next_block);
  }
}

// Returns the record of a piece that some node wrote before. Returns nothing if there is no such record, if the record
// is invalid, or if the files that it describes are not there. Throws if it describes other bytes than `wanted`.
std::optional<ShardRecord> CheckpointWriter::find_written(const std::string& directory, CheckpointId checkpoint,
                                                          const ShardRecord& wanted) {
  const auto path = [&](std::string_view suffix) {
    return directory + "/" + file_name(wanted.shard, checkpoint.incarnation(), suffix);
  };
  const std::string data = directory + "/" + data_file_name(wanted.shard, checkpoint.incarnation());
  if (!files_.file_size(path(record_suffix))) return std::nullopt;
  std::optional<ShardRecord> found;
  try {
    const std::string text = read_whole(files_, path(record_suffix), record_max_bytes);
    const CheckpointRecord record = decode_record(text, files_.label(path(record_suffix)));
    if (record.job != job_ || record.checkpoint != checkpoint || record.find(wanted.shard) == nullptr)
      return std::nullopt;
    found = *record.find(wanted.shard);
  } catch (const Failure& failure) {
    if (failure.status() != CKPT_ERR_CORRUPT) throw;
    return std::nullopt;
  }
  if (!is_same_piece(*found, wanted)) refuse_other_bytes(files_.label(path(record_suffix)));
  const bool has_data = files_.file_size(data) == wanted.file_bytes() ||
                        files_.file_size(data + std::string(parts_suffix)) == wanted.file_bytes();
  if (!has_data || files_.file_size(path(leaves_suffix)) != wanted.leaves_bytes()) return std::nullopt;
  files_.sync_directory(directory);  // whoever wrote the record may not have made it durable yet
  return found;
}

ShardRecord CheckpointWriter::write(const Piece& piece) {
  const arena::Manifest& manifest = *piece.manifest;
  if (!arena::is_consistent(manifest) || !is_plain_name(manifest.shard))
    throw Failure(CKPT_ERR_CORRUPT, "the manifest of shard \"" + manifest.shard +
                                        "\" is damaged, so this checkpoint is not written; a later one will be");
  const Header header = encode_header(manifest, job_);
  ShardRecord record = describe(manifest, header, node_);
  const std::uint64_t incarnation = manifest.checkpoint.incarnation();
  const std::string directory = job_ + "/" + folder_name(manifest.checkpoint.iteration());
  make_checkpoint_directory(directory);
  if (auto written = find_written(directory, manifest.checkpoint, record)) return *written;
  write_data(piece, header.bytes, record, directory + "/" + data_file_name(manifest.shard, incarnation));
  write_whole(files_, directory + "/" + file_name(manifest.shard, incarnation, leaves_suffix),
              bytes_of(manifest.leaves));
  // The record says that data and leaf digests are there. This must be true even after a power cut.
  files_.sync_directory(directory);
  write_whole(files_, directory + "/" + file_name(manifest.shard, incarnation, record_suffix),
              encode({CheckpointRecord::Kind::shard, job_, manifest.checkpoint, manifest.world_size, node_, {record}}));
  files_.sync_directory(directory);
  return record;
}

// Removes the records first, and makes that durable. Without its record, a piece can no longer become part of a
// checkpoint. If a record cannot be removed, the bytes that it describes stay, too.
void CheckpointWriter::discard(CheckpointId checkpoint, const std::vector<std::string>& shards) {
  const std::string directory = job_ + "/" + folder_name(checkpoint.iteration());
  const auto path = [&](const std::string& name) { return directory + "/" + name; };
  const std::uint64_t incarnation = checkpoint.incarnation();
  if (shards.empty() || files_.file_size(path(std::string(manifest_name)))) return;
  try {
    for (const std::string& shard : shards) {
      const std::string record = path(file_name(shard, incarnation, record_suffix));
      if (files_.file_size(record)) files_.remove(record);
    }
    files_.sync_directory(directory);
  } catch (const StorageError&) {
    return;
  }
  for (const std::string& shard : shards) {
    const bool is_cut = core::parse_part(shard).of > 1;
    remove_quietly(files_, path(file_name(shard, incarnation, leaves_suffix)));
    remove_quietly(files_, path(data_file_name(shard, incarnation)) + std::string(is_cut ? parts_suffix : ""));
  }
}

void CheckpointWriter::refuse_missing(const std::string& path, std::optional<std::uint64_t> size_bytes) const {
  const std::string size = size_bytes ? " or is not " + std::to_string(*size_bytes) + " bytes long" : "";
  throw Failure(CKPT_ERR_LOST,
                files_.label(path) + " is missing" + size +
                    ", so the checkpoint cannot be completed; check that all nodes name the same storage");
}

ShardRecord CheckpointWriter::read_record(const std::string& shard, CheckpointId checkpoint, std::uint32_t world_size) {
  const std::string directory = job_ + "/" + folder_name(checkpoint.iteration());
  const std::string path = directory + "/" + file_name(shard, checkpoint.incarnation(), record_suffix);
  if (!files_.file_size(path)) refuse_missing(path);
  const CheckpointRecord record = decode_record(read_whole(files_, path, record_max_bytes), files_.label(path));
  const ShardRecord* const found = record.find(shard);
  if (record.kind != CheckpointRecord::Kind::shard || record.job != job_ || record.checkpoint != checkpoint ||
      record.world_size != world_size || found == nullptr)
    throw Failure(
        CKPT_ERR_CORRUPT,
        files_.label(path) +
            " describes another piece than its name says; check whether another job of this name uses this storage");
  const std::string leaves = directory + "/" + file_name(shard, checkpoint.incarnation(), leaves_suffix);
  if (files_.file_size(leaves) != found->leaves_bytes()) refuse_missing(leaves, found->leaves_bytes());
  return *found;
}

// Returns the manifest of the checkpoint `wanted` if some node wrote it before. Returns nothing if commit() must write
// it: there is no manifest, or a damaged one, or one of an earlier incarnation. Throws CKPT_ERR_SUPERSEDED if there is
// one of a later incarnation.
std::optional<CheckpointRecord> CheckpointWriter::find_committed(const std::string& path,
                                                                 const CheckpointRecord& wanted) {
  if (!files_.file_size(path)) return std::nullopt;
  std::optional<CheckpointRecord> found;
  try {
    found = decode_record(read_whole(files_, path, record_max_bytes), files_.label(path));
  } catch (const Failure& failure) {
    if (failure.status() != CKPT_ERR_CORRUPT) throw;
    return std::nullopt;
  }
  if (found->checkpoint > wanted.checkpoint)
    throw Failure(CKPT_ERR_SUPERSEDED,
                  files_.label(path) + " belongs to the later incarnation " +
                      std::to_string(found->checkpoint.incarnation()) +
                      ", so this agent does not complete this iteration of incarnation " +
                      std::to_string(wanted.checkpoint.incarnation()) +
                      ". There is nothing to do: storage has the iteration from the later incarnation");
  if (found->checkpoint != wanted.checkpoint) return std::nullopt;
  if (!are_same_pieces(*found, wanted)) refuse_other_bytes(files_.label(path));
  return found;
}

// Gives a shard's file its final name once all of its parts are written. Throws CKPT_ERR_LOST if some are not. Other
// nodes may be doing the same, and a late one may have begun to fill a new file of parts. So a file under the final
// name is never replaced.
void CheckpointWriter::put_in_place(const std::string& directory, const ShardFile& file) {
  const std::string path = directory + "/" + file.name, parts = path + std::string(parts_suffix);
  const auto is_in_place = [&] { return files_.file_size(path) == file.file_bytes; };
  if (is_in_place()) return;
  const bool is_cut = file.pieces.size() > 1;
  if (!is_cut || files_.file_size(parts) != file.file_bytes) {
    if (is_in_place()) return;
    refuse_missing(is_cut ? parts : path, file.file_bytes);
  }
  try {
    files_.link(parts, path);
  } catch (const StorageError& error) {
    if ((error.error() != EEXIST && error.error() != ENOENT) || !is_in_place()) throw;
  }
}

CheckpointRecord CheckpointWriter::commit(CheckpointId checkpoint, std::uint32_t world_size,
                                          std::vector<std::string> shards) {
  std::sort(shards.begin(), shards.end());
  shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  const std::string directory = job_ + "/" + folder_name(checkpoint.iteration());
  const std::string path = directory + "/" + std::string(manifest_name);
  CheckpointRecord stored{CheckpointRecord::Kind::checkpoint, job_, checkpoint, world_size, node_, {}};
  for (const std::string& shard : shards) stored.shards.push_back(read_record(shard, checkpoint, world_size));
  const auto files = files_of(stored);
  const auto committed = find_committed(path, stored);
  for (const ShardFile& file : files) put_in_place(directory, file);
  files_.sync_directory(directory);
  if (!committed) {
    write_whole(files_, path, encode(stored));
    files_.sync_directory(directory);
  }
  for (const ShardFile& file : files)
    if (file.pieces.size() > 1) remove_quietly(files_, directory + "/" + file.name + std::string(parts_suffix));
  return committed.value_or(stored);
}

}  // namespace ckpt::persist
