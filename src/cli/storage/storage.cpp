#include "cli/storage/storage.hpp"

#include <algorithm>
#include <charconv>

#include "options/options.hpp"
#include "persist/shard_reader.hpp"

namespace ckpt::cli {
namespace {

constexpr std::size_t reading_bytes = std::size_t{64} << 20;  // read between two updates of the progress

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// A directory that we may not read belongs to somebody else.
bool has_checkpoints(persist::FileSystem& files, const std::string& directory) {
  try {
    const auto entries = files.list(directory);
    return std::any_of(entries.begin(), entries.end(),
                       [](const auto& entry) { return entry.is_directory && persist::parse_folder_name(entry.name); });
  } catch (const persist::StorageError& error) {
    if (error.is_about_storage()) throw;
    return false;
  }
}

void read_piece(persist::FileSystem& files, const persist::CheckpointRecord& record, const persist::ShardRecord& piece,
                std::byte* memory, Progress& progress) {
  persist::ShardReader reader(files, record, piece.shard);
  const std::uint64_t length = reader.manifest().length_bytes;
  for (std::uint64_t begin = 0; begin < length; begin += reading_bytes) {
    const std::uint64_t size_bytes = std::min<std::uint64_t>(reading_bytes, length - begin);
    reader.read({begin, size_bytes}, memory);
    progress.advance(size_bytes);
  }
}

}  // namespace

Storage::Storage(const StorageScope& scope)
    : scope_(scope), files_([&] {
        if (scope.location.empty())
          throw Failure(CKPT_ERR_INVALID,
                        "no storage is named; give an absolute path or nfs://server/export/path with --storage or "
                        "CKPTENGINE_STORAGE");
        return persist::open_file_system(scope.location, scope.files);
      }()) {
  persist::require_location(*files_);
}

std::vector<std::string> Storage::jobs() {
  std::vector<std::string> jobs;
  for (const persist::DirectoryEntry& entry : files_->list(""))
    if (entry.is_directory && is_plain_name(entry.name) && has_checkpoints(*files_, entry.name))
      jobs.push_back(entry.name);
  std::sort(jobs.begin(), jobs.end());
  return jobs;
}

std::string Storage::other_jobs() {
  const std::vector<std::string> names = jobs();
  if (names.empty()) return "there is no job in " + files_->label("");
  return "the jobs in " + files_->label("") + " are: " + joined(names);
}

std::vector<persist::StoredCheckpoint> Storage::stored_checkpoints() {
  if (scope_.job.empty()) throw Failure(CKPT_ERR_INVALID, "no job is named; name it with --job; " + other_jobs());
  auto stored_checkpoints = persist::list_checkpoints(*files_, scope_.job);
  if (stored_checkpoints.empty())
    throw Failure(CKPT_ERR_INVALID, "there is no checkpoint of job " + scope_.job + "; " + other_jobs());
  return stored_checkpoints;
}

bool Storage::may_be_coming(const std::string& job, const std::vector<persist::StoredCheckpoint>& stored_checkpoints,
                            const persist::StoredCheckpoint& stored) {
  const persist::StoredCheckpoint* const newest = newest_usable(stored_checkpoints);
  if (stored.record || stored.is_withheld || (newest != nullptr && stored.iteration < newest->iteration)) return false;
  return !files_->file_size(job + "/" + persist::folder_name(stored.iteration) + "/" +
                            std::string(persist::manifest_name));
}

const persist::StoredCheckpoint* newest_usable(const std::vector<persist::StoredCheckpoint>& stored_checkpoints) {
  const auto found = std::find_if(stored_checkpoints.begin(), stored_checkpoints.end(),
                                  [](const persist::StoredCheckpoint& stored) { return stored.usable(); });
  return found == stored_checkpoints.end() ? nullptr : &*found;
}

const persist::StoredCheckpoint& find_checkpoint(const Storage& storage,
                                                 const std::vector<persist::StoredCheckpoint>& stored_checkpoints,
                                                 const std::string& word) {
  if (word == "latest") {
    if (const persist::StoredCheckpoint* newest = newest_usable(stored_checkpoints)) return *newest;
    throw Failure(CKPT_ERR_INVALID, storage.job_label() + " has no usable checkpoint; ckptctl ls says why");
  }
  std::int64_t iteration = -1;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), iteration);
  if (error != std::errc() || end != word.data() + word.size() || iteration < 0)
    throw Failure(CKPT_ERR_INVALID, "\"" + word + "\" names no checkpoint; give the number of an iteration, or latest");
  for (const persist::StoredCheckpoint& stored : stored_checkpoints)
    if (stored.iteration == iteration) return stored;
  throw Failure(CKPT_ERR_INVALID,
                storage.job_label() + " has no checkpoint " + word + "; ckptctl ls shows those it has");
}

const persist::CheckpointRecord& find_usable_checkpoint(
    const Storage& storage, const std::vector<persist::StoredCheckpoint>& stored_checkpoints, const std::string& word) {
  const persist::StoredCheckpoint& stored = find_checkpoint(storage, stored_checkpoints, word);
  if (!stored.usable())
    throw Failure(CKPT_ERR_CORRUPT, stored_text(stored) + " cannot be used: " + problem_text(stored));
  return *stored.record;
}

persist::ShardFile find_shard(const Storage& storage, const persist::CheckpointRecord& record,
                              const std::string& name) {
  std::vector<std::string> names;
  for (const persist::ShardFile& file : persist::files_of(record)) {
    if (file.shard == name) return file;
    names.push_back(file.shard);
  }
  throw Failure(CKPT_ERR_INVALID, "checkpoint " + std::to_string(record.checkpoint.iteration()) + " of " +
                                      storage.job_label() + " has no shard \"" + name +
                                      "\"; its shards are: " + joined(names));
}

std::uint64_t data_bytes(const persist::CheckpointRecord& record) {
  std::uint64_t bytes = 0;
  for (const persist::ShardRecord& piece : record.shards) bytes += piece.data_bytes;
  return bytes;
}

std::string stored_text(const persist::StoredCheckpoint& stored) {
  return "checkpoint " + std::to_string(stored.iteration);
}

std::string problem_text(const persist::StoredCheckpoint& stored) {
  return stored.is_withheld ? "withheld: " + stored.problem + "; it may be complete" : stored.problem;
}

std::vector<std::string> read_shards(persist::FileSystem& files, const persist::CheckpointRecord& record,
                                     const std::vector<persist::ShardFile>& shards, Progress& progress) {
  std::vector<std::string> problems;
  const auto memory = files.make_buffer(reading_bytes);
  for (const persist::ShardFile& shard : shards) {
    for (const persist::ShardRecord* piece : shard.pieces) {
      try {
        read_piece(files, record, *piece, memory.get(), progress);
      } catch (const persist::StorageError& error) {
        if (error.is_about_storage()) throw;
        problems.emplace_back(error.what());
      } catch (const Failure& failure) {
        problems.emplace_back(failure.what());
      }
    }
  }
  return problems;
}

}  // namespace ckpt::cli
