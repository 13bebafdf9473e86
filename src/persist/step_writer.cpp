#include "persist/step_writer.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/options.hpp"
#include "kernels/copy_digest.hpp"
#include "persist/transfer.hpp"

namespace ckpt::persist {
namespace {

// Calls off a write whose bytes are not those that were captured.
void check_leaves(const Piece& piece, std::uint64_t offset, std::size_t size_bytes) {
  const arena::Manifest& manifest = *piece.manifest;
  const std::size_t first = offset / kernels::leaf_size_bytes;
  const std::size_t last = first + kernels::leaf_count(size_bytes);
  const auto bad = kernels::verify_leaves(piece.data, manifest.length_bytes, first, last, manifest.leaves.data());
  if (bad)
    throw Failure(CKPT_ERR_CORRUPT, "leaf " + std::to_string(*bad) + " of shard " + manifest.shard +
                                        " changed in memory since it was captured; it is not written");
}

std::string bytes_of(const std::vector<std::uint64_t>& words) {
  std::string bytes(words.size() * sizeof(std::uint64_t), '\0');
  if (!words.empty()) std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

ShardRecord record_of(const arena::Manifest& manifest, const std::string& header, const std::string& node) {
  ShardRecord record;
  record.shard = manifest.shard;
  record.header_bytes = header.size();
  record.header_digest = digest_of(header);
  record.data_bytes = manifest.length_bytes;
  record.root_digest = manifest.root_digest;
  record.layout_bytes = manifest.layout.size();
  record.layout_hash = manifest.layout_hash;
  record.written_by = node;
  return record;
}

}  // namespace

StepWriter::StepWriter(FileSystem& files, std::string job, std::string node, Pace& pace)
    : files_(files), job_(std::move(job)), node_(std::move(node)), pace_(pace) {
  if (!is_plain_name(job_) || !is_plain_name(node_))
    throw Failure(CKPT_ERR_INVALID, "\"" + job_ + "\" or \"" + node_ + "\" cannot name a job or a node on storage");
}

// Whoever finds a directory made by another does not know whether it is durable yet.
void StepWriter::make_step_directory(const std::string& directory) {
  if (directory == made_directory_) return;
  files_.make_directory("");
  files_.make_directory(job_);
  files_.sync_directory("");
  files_.make_directory(directory);
  files_.sync_directory(job_);
  made_directory_ = directory;
}

void StepWriter::write_data(const Piece& piece, const std::string& header, const std::string& path) {
  const std::uint64_t data_bytes = piece.manifest->length_bytes;
  const std::size_t block_bytes = files_.options().block_bytes;  // whole leaves, each of which can be checked alone
  const auto head = make_aligned_buffer(header.size());
  std::memcpy(head.get(), header.data(), header.size());
  std::optional<std::uint64_t> next;  // of the data; nothing: the header is due
  write_whole(files_, path, header.size() + data_bytes, [&](Block& block) {
    if (!next) {
      block = {0, head.get(), header.size(), head};
      next = 0;
    } else if (*next < data_bytes) {
      block = {header.size() + *next, piece.data + *next, std::min<std::size_t>(block_bytes, data_bytes - *next),
               piece.owner};
      check_leaves(piece, *next, block.size_bytes);
      *next += block.size_bytes;
    } else {
      return false;
    }
    pace_.take(block.size_bytes, files_.options().stop);
    return true;
  });
}

ShardRecord StepWriter::write(const Piece& piece) {
  const arena::Manifest& manifest = *piece.manifest;
  if (!arena::is_consistent(manifest) || !is_plain_name(manifest.shard))
    throw Failure(CKPT_ERR_CORRUPT, "the manifest of shard \"" + manifest.shard + "\" does not agree with itself");
  const std::string header = encode_header(manifest, job_);
  const std::string directory = job_ + "/" + step_name(manifest.version.iteration());
  const auto path = [&](std::string_view suffix) {
    return directory + "/" + file_name(manifest.shard, manifest.version.incarnation(), suffix);
  };
  ShardRecord record = record_of(manifest, header, node_);
  make_step_directory(directory);
  write_data(piece, header, path(data_suffix));
  write_whole(files_, path(leaves_suffix), bytes_of(manifest.leaves));
  // The record claims that both are there: also after a power cut.
  files_.sync_directory(directory);
  write_whole(files_, path(record_suffix),
              encode({StepRecord::Kind::shard, job_, manifest.version, manifest.world_size, node_, {record}}));
  files_.sync_directory(directory);
  return record;
}

ShardRecord StepWriter::read_record(const std::string& shard, Version version, std::uint32_t world_size) {
  const std::string directory = job_ + "/" + step_name(version.iteration());
  const std::string path = directory + "/" + file_name(shard, version.incarnation(), record_suffix);
  const auto missing = [&](const std::string& what) {
    throw Failure(CKPT_ERR_LOST, files_.label(what) + " is not there, so that the step cannot be made whole; look " +
                                     "whether all nodes name the same storage");
  };
  if (!files_.file_size(path)) missing(path);
  const StepRecord record = decode_record(read_whole(files_, path, record_max_bytes), files_.label(path));
  const ShardRecord* const found = record.find(shard);
  if (record.kind != StepRecord::Kind::shard || record.job != job_ || record.version != version ||
      record.world_size != world_size || found == nullptr)
    throw Failure(CKPT_ERR_CORRUPT, files_.label(path) + " is the record of something else");
  for (const auto& [suffix, size_bytes] :
       {std::pair(data_suffix, found->file_bytes()), std::pair(leaves_suffix, found->leaves_bytes())}) {
    const std::string file = directory + "/" + file_name(shard, version.incarnation(), suffix);
    if (files_.file_size(file) != size_bytes) missing(file + " with its " + std::to_string(size_bytes) + " bytes");
  }
  return *found;
}

StepRecord StepWriter::commit(Version version, std::uint32_t world_size, std::vector<std::string> shards) {
  std::sort(shards.begin(), shards.end());
  shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  StepRecord step{StepRecord::Kind::step, job_, version, world_size, node_, {}};
  for (const std::string& shard : shards) step.shards.push_back(read_record(shard, version, world_size));
  const std::string directory = job_ + "/" + step_name(version.iteration());
  write_whole(files_, directory + "/" + std::string(manifest_name), encode(step));
  files_.sync_directory(directory);
  return step;
}

}  // namespace ckpt::persist
