#include "persist/checkpoint_catalog.hpp"

#include <algorithm>
#include <cerrno>
#include <functional>

#include "persist/shard_reader.hpp"
#include "persist/transfer.hpp"

namespace ckpt::persist {
namespace {

// The incarnation in a file's name may exceed the newest incarnation that finished a checkpoint by this much. A file
// name beyond that is ignored.
constexpr std::uint64_t incarnations_ahead_max = 65'536;

std::string check_file(FileSystem& files, const std::string& path, std::uint64_t expected_bytes) {
  const auto size = files.file_size(path);
  if (!size) return files.label(path) + " is missing";
  if (*size != expected_bytes)
    return files.label(path) + " is " + std::to_string(*size) + " bytes long and should be " +
           std::to_string(expected_bytes);
  return {};
}

std::string check_files(FileSystem& files, const std::string& directory, const CheckpointRecord& record) {
  for (const ShardFile& file : files_of(record)) {
    auto problem = check_file(files, directory + "/" + file.name, file.file_bytes);
    if (!problem.empty()) return problem;
  }
  for (const ShardRecord& shard : record.shards) {
    const std::string name = file_name(shard.shard, record.checkpoint.incarnation(), leaves_suffix);
    auto problem = check_file(files, directory + "/" + name, shard.leaves_bytes());
    if (!problem.empty()) return problem;
  }
  return {};
}

void look_into(FileSystem& files, const std::string& job, StoredCheckpoint& stored) {
  const std::string directory = job + "/" + folder_name(stored.iteration);
  const std::string path = directory + "/" + std::string(manifest_name);
  if (!files.file_size(path)) {
    stored.problem =
        files.label(directory) + " has no " + std::string(manifest_name) + ": the checkpoint was never completed";
    return;
  }
  CheckpointRecord record = decode_record(read_whole(files, path, record_max_bytes), files.label(path));
  if (record.kind != CheckpointRecord::Kind::checkpoint || record.job != job ||
      record.checkpoint.iteration() != stored.iteration) {
    stored.problem = files.label(path) + " belongs to iteration " + std::to_string(record.checkpoint.iteration()) +
                     " of job " + record.job;
    return;
  }
  stored.newest_incarnation = std::max(stored.newest_incarnation, record.checkpoint.incarnation());
  stored.record = std::move(record);
  stored.problem = check_files(files, directory, *stored.record);
}

// Calls `look`. If it throws, notes why the checkpoint cannot be used, and whether storage refused to let us read it.
// Throws on if storage itself fails.
template <class Look>
void examine(StoredCheckpoint& stored, Look look) {
  try {
    look();
  } catch (const StorageError& error) {
    if (error.is_about_storage()) throw;
    stored.problem = error.what();
    stored.is_withheld = !error.is_about_path();
  } catch (const Failure& failure) {
    stored.problem = failure.what();
  }
}

// What the file names in a checkpoint's directory say.
struct Names {
  std::uint64_t newest_incarnation = 0;
  std::string newest;        // the file name that has this incarnation
  bool are_all_ours = true;  // no name is of another program
};
Names look_at_names(FileSystem& files, const std::string& directory,
                    std::uint64_t incarnation_limit = CheckpointId::incarnation_max) {
  Names names;
  for (const DirectoryEntry& entry : files.list(directory)) {
    if (entry.name.starts_with(manifest_name)) continue;
    const auto incarnation = incarnation_in(entry.name);
    const bool is_ours = !entry.is_directory && incarnation && *incarnation <= CheckpointId::incarnation_max;
    names.are_all_ours = names.are_all_ours && is_ours;
    if (!is_ours || *incarnation > incarnation_limit || *incarnation <= names.newest_incarnation) continue;
    names.newest_incarnation = *incarnation;
    names.newest = entry.name;
  }
  return names;
}

// Ignores file names whose incarnation is too far above those of all finished checkpoints. Otherwise one such name
// could use up the numbers of incarnations. A checkpoint whose names cannot be listed becomes unusable, because nobody
// knows which incarnations left files in it.
void pass_over_absurd_names(FileSystem& files, const std::string& job,
                            std::vector<StoredCheckpoint>& stored_checkpoints) {
  std::uint64_t finished = 0;
  for (const StoredCheckpoint& stored : stored_checkpoints)
    finished = std::max(finished, stored.checkpoint().incarnation());
  for (StoredCheckpoint& stored : stored_checkpoints) {
    if (stored.newest_incarnation <= finished + incarnations_ahead_max) continue;
    const std::string directory = job + "/" + folder_name(stored.iteration);
    examine(stored, [&] {
      const std::string name = look_at_names(files, directory).newest;
      stored.remark =
          files.label(directory + "/" + name) +
          " names an incarnation far above those of all complete checkpoints, so this file is ignored; remove it";
      stored.newest_incarnation = look_at_names(files, directory, finished + incarnations_ahead_max).newest_incarnation;
    });
  }
}

bool may_go(FileSystem& files, const std::string& job, const StoredCheckpoint& stored, CheckpointId newest_usable) {
  if (stored.usable()) return true;  // `retention` does not keep it
  if (stored.is_withheld) return false;
  const Names names = look_at_names(files, job + "/" + folder_name(stored.iteration));
  // A directory in which no file names an incarnation may have just been made.
  const auto newest = names.newest_incarnation == 0 ? newest_usable.incarnation() : names.newest_incarnation;
  return names.are_all_ours && CheckpointId(newest, stored.iteration) < newest_usable;
}

bool is_on_its_way(std::string_view name) { return name.ends_with(part_suffix) || name.ends_with(parts_suffix); }

// Whether a kept checkpoint does not need the file `name`. That is so if an earlier incarnation left the file, if it
// never became a whole file, or if a later incarnation left it and a newer usable checkpoint exists.
bool is_left_over(const StoredCheckpoint& stored, const std::string& name, CheckpointId newest_usable) {
  const std::uint64_t kept = stored.checkpoint().incarnation();
  if (name.starts_with(manifest_name)) return is_on_its_way(name) && stored.checkpoint() < newest_usable;
  const auto of = incarnation_in(name);
  if (!of || *of > CheckpointId::incarnation_max) return false;
  return *of < kept || (*of == kept && is_on_its_way(name)) ||
         (*of > kept && CheckpointId(*of, stored.iteration) < newest_usable);
}

void sweep(FileSystem& files, const std::string& job, const StoredCheckpoint& stored, CheckpointId newest_usable) {
  const std::string directory = job + "/" + folder_name(stored.iteration);
  for (const DirectoryEntry& entry : files.list(directory))
    if (!entry.is_directory && is_left_over(stored, entry.name, newest_usable))
      files.remove(directory + "/" + entry.name);
}

// Whether `retention` keeps this usable checkpoint if it keeps `kept` newer ones.
bool is_kept(const StoredCheckpoint& stored, const Retention& retention, std::uint32_t kept) {
  return kept < std::max(retention.keep_last, 1u) ||
         (retention.keep_every > 0 && stored.iteration % retention.keep_every == 0);
}

}  // namespace

std::vector<StoredCheckpoint> list_checkpoints(FileSystem& files, const std::string& job) {
  std::vector<DirectoryEntry> entries;
  try {
    entries = files.list(job);
  } catch (const StorageError& error) {
    if (error.error() != ENOENT) throw;
    require_location(files);
    return {};
  }
  std::vector<StoredCheckpoint> stored_checkpoints;
  for (const DirectoryEntry& entry : entries) {
    const auto iteration = parse_folder_name(entry.name);
    if (!iteration) continue;
    StoredCheckpoint& stored = stored_checkpoints.emplace_back();
    stored.iteration = *iteration;
    examine(stored,
            [&] { stored.newest_incarnation = look_at_names(files, job + "/" + entry.name).newest_incarnation; });
    if (stored.usable()) examine(stored, [&] { look_into(files, job, stored); });
  }
  pass_over_absurd_names(files, job, stored_checkpoints);
  std::sort(stored_checkpoints.begin(), stored_checkpoints.end(),
            [](const StoredCheckpoint& a, const StoredCheckpoint& b) {
              return a.checkpoint() != b.checkpoint() ? a.checkpoint() > b.checkpoint() : a.iteration > b.iteration;
            });
  return stored_checkpoints;
}

void remove_checkpoint(FileSystem& files, const std::string& job, std::int64_t iteration) {
  const std::string directory = job + "/" + folder_name(iteration);
  auto entries = files.list(directory);
  const auto remove_those = [&](const std::function<bool(const std::string&)>& belongs) {
    const auto going = [&](const DirectoryEntry& entry) { return belongs(entry.name); };
    for (const DirectoryEntry& entry : entries)
      if (going(entry)) files.remove(directory + "/" + entry.name);
    if (std::erase_if(entries, going) != 0) files.sync_directory(directory);
  };
  // This order leaves no manifest without its records, and no record without the bytes that it describes.
  remove_those([](const std::string& name) { return name == manifest_name; });
  remove_those([](const std::string& name) { return name.ends_with(record_suffix); });
  remove_those([](const std::string&) { return true; });
  files.remove_directory(directory);
  files.sync_directory(job);
}

Pruned prune_checkpoints(FileSystem& files, const std::string& job, const Retention& retention,
                         const std::set<CheckpointId>& damaged) {
  Pruned pruned;
  CheckpointId newest_usable;
  std::uint32_t kept = 0;
  for (StoredCheckpoint& stored : list_checkpoints(files, job)) {
    if (damaged.contains(stored.checkpoint())) stored.problem = "it was found damaged";
    try {
      if (stored.usable() && is_kept(stored, retention, kept)) {
        newest_usable = std::max(newest_usable, stored.checkpoint());
        ++kept;
        sweep(files, job, stored, newest_usable);
      } else if (newest_usable && may_go(files, job, stored, newest_usable)) {
        remove_checkpoint(files, job, stored.iteration);
        pruned.removed.push_back(stored.iteration);
      }
    } catch (const StorageError& error) {
      if (error.is_about_storage()) throw;
      pruned.problems.emplace_back(error.what());
    }
  }
  return pruned;
}

}  // namespace ckpt::persist
