#include "persist/step_catalog.hpp"

#include <algorithm>
#include <cerrno>
#include <functional>

#include "persist/shard_reader.hpp"
#include "persist/transfer.hpp"

namespace ckpt::persist {
namespace {

// How many lives may have left unfinished files since the newest one that finished a step.
constexpr std::uint64_t lives_ahead_max = 65'536;

std::string check_file(FileSystem& files, const std::string& path, std::uint64_t expected_bytes) {
  const auto size = files.file_size(path);
  if (!size) return files.label(path) + " is missing";
  if (*size != expected_bytes)
    return files.label(path) + " is " + std::to_string(*size) + " bytes long and should be " +
           std::to_string(expected_bytes);
  return {};
}

std::string check_files(FileSystem& files, const std::string& directory, const StepRecord& record) {
  for (const ShardFile& file : files_of(record)) {
    auto problem = check_file(files, directory + "/" + file.name, file.file_bytes);
    if (!problem.empty()) return problem;
  }
  for (const ShardRecord& shard : record.shards) {
    const std::string name = file_name(shard.shard, record.version.incarnation(), leaves_suffix);
    auto problem = check_file(files, directory + "/" + name, shard.leaves_bytes());
    if (!problem.empty()) return problem;
  }
  return {};
}

void look_into(FileSystem& files, const std::string& job, Step& step) {
  const std::string directory = job + "/" + step_name(step.iteration);
  const std::string path = directory + "/" + std::string(manifest_name);
  if (!files.file_size(path)) {
    step.problem = files.label(directory) + " has no " + std::string(manifest_name) + ": it was never finished";
    return;
  }
  StepRecord record = decode_record(read_whole(files, path, record_max_bytes), files.label(path));
  if (record.kind != StepRecord::Kind::step || record.job != job || record.version.iteration() != step.iteration) {
    step.problem = files.label(path) + " belongs to iteration " + std::to_string(record.version.iteration()) +
                   " of job " + record.job;
    return;
  }
  step.newest_incarnation = std::max(step.newest_incarnation, record.version.incarnation());
  step.record = std::move(record);
  step.problem = check_files(files, directory, *step.record);
}

// Puts down what keeps a step from being used, and whether that is its own fault.
template <class Look>
void examine(Step& step, Look look) {
  try {
    look();
  } catch (const StorageError& error) {
    if (error.is_about_storage()) throw;
    step.problem = error.what();
    step.is_withheld = !error.is_about_path();
  } catch (const Failure& failure) {
    step.problem = failure.what();
  }
}

// What the names in a step's directory tell.
struct Names {
  std::uint64_t newest_incarnation = 0;
  std::string newest;  // the name that tells it
  bool are_all_ours = true;
};
Names look_at_names(FileSystem& files, const std::string& directory,
                    std::uint64_t incarnation_limit = Version::incarnation_max) {
  Names names;
  for (const DirectoryEntry& entry : files.list(directory)) {
    if (entry.name.starts_with(manifest_name)) continue;
    const auto incarnation = incarnation_in(entry.name);
    const bool is_ours = !entry.is_directory && incarnation && *incarnation <= Version::incarnation_max;
    names.are_all_ours = names.are_all_ours && is_ours;
    if (!is_ours || *incarnation > incarnation_limit || *incarnation <= names.newest_incarnation) continue;
    names.newest_incarnation = *incarnation;
    names.newest = entry.name;
  }
  return names;
}

// Without the names nobody knows which lives left something there. The names that lie too far ahead of all that was
// ever finished are passed over; the life numbers would come to an end otherwise.
void pass_over_absurd_names(FileSystem& files, const std::string& job, std::vector<Step>& steps) {
  std::uint64_t finished = 0;
  for (const Step& step : steps) finished = std::max(finished, step.version().incarnation());
  for (Step& step : steps) {
    if (step.newest_incarnation <= finished + lives_ahead_max) continue;
    const std::string directory = job + "/" + step_name(step.iteration);
    examine(step, [&] {
      const std::string name = look_at_names(files, directory).newest;
      step.remark = files.label(directory + "/" + name) +
                    " names an incarnation far beyond all that were finished; it " + "does not count. Remove it";
      step.newest_incarnation = look_at_names(files, directory, finished + lives_ahead_max).newest_incarnation;
    });
  }
}

bool may_go(FileSystem& files, const std::string& job, const Step& step, Version newest_usable) {
  if (step.usable()) return true;  // one of too many
  if (step.is_withheld) return false;
  const Names names = look_at_names(files, job + "/" + step_name(step.iteration));
  // A directory without names of any life may have been made just now.
  const auto newest = names.newest_incarnation == 0 ? newest_usable.incarnation() : names.newest_incarnation;
  return names.are_all_ours && Version(newest, step.iteration) < newest_usable;
}

bool is_on_its_way(std::string_view name) { return name.ends_with(part_suffix) || name.ends_with(parts_suffix); }

// Whether a step that is kept needs no file of this name: what earlier lives left, what never became a whole file, and
// what later lives did not bring to an end before a step newer than all theirs was there.
bool is_left_over(const Step& step, const std::string& name, Version newest_usable) {
  const std::uint64_t kept = step.version().incarnation();
  if (name.starts_with(manifest_name)) return is_on_its_way(name) && step.version() < newest_usable;
  const auto of = incarnation_in(name);
  if (!of || *of > Version::incarnation_max) return false;
  return *of < kept || (*of == kept && is_on_its_way(name)) ||
         (*of > kept && Version(*of, step.iteration) < newest_usable);
}

void sweep(FileSystem& files, const std::string& job, const Step& step, Version newest_usable) {
  const std::string directory = job + "/" + step_name(step.iteration);
  for (const DirectoryEntry& entry : files.list(directory))
    if (!entry.is_directory && is_left_over(step, entry.name, newest_usable))
      files.remove(directory + "/" + entry.name);
}

// Whether `retention` keeps a usable step, when so many newer ones are kept.
bool is_kept(const Step& step, const Retention& retention, std::uint32_t kept) {
  return kept < std::max(retention.keep_last, 1u) ||
         (retention.keep_every > 0 && step.iteration % retention.keep_every == 0);
}

}  // namespace

std::vector<Step> list_steps(FileSystem& files, const std::string& job) {
  std::vector<DirectoryEntry> entries;
  try {
    entries = files.list(job);
  } catch (const StorageError& error) {
    if (error.error() != ENOENT) throw;
    require_location(files);
    return {};
  }
  std::vector<Step> steps;
  for (const DirectoryEntry& entry : entries) {
    const auto iteration = parse_step_name(entry.name);
    if (!iteration) continue;
    Step& step = steps.emplace_back();
    step.iteration = *iteration;
    examine(step, [&] { step.newest_incarnation = look_at_names(files, job + "/" + entry.name).newest_incarnation; });
    if (step.usable()) examine(step, [&] { look_into(files, job, step); });
  }
  pass_over_absurd_names(files, job, steps);
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) {
    return a.version() != b.version() ? a.version() > b.version() : a.iteration > b.iteration;
  });
  return steps;
}

void remove_step(FileSystem& files, const std::string& job, std::int64_t iteration) {
  const std::string directory = job + "/" + step_name(iteration);
  auto entries = files.list(directory);
  const auto remove_those = [&](const std::function<bool(const std::string&)>& belongs) {
    const auto going = [&](const DirectoryEntry& entry) { return belongs(entry.name); };
    for (const DirectoryEntry& entry : entries)
      if (going(entry)) files.remove(directory + "/" + entry.name);
    if (std::erase_if(entries, going) != 0) files.sync_directory(directory);
  };
  // At every instant the manifest stands for records, and a record for the bytes that it describes.
  remove_those([](const std::string& name) { return name == manifest_name; });
  remove_those([](const std::string& name) { return name.ends_with(record_suffix); });
  remove_those([](const std::string&) { return true; });
  files.remove_directory(directory);
  files.sync_directory(job);
}

Pruned prune_steps(FileSystem& files, const std::string& job, const Retention& retention,
                   const std::set<Version>& damaged) {
  Pruned pruned;
  Version newest_usable;
  std::uint32_t kept = 0;
  for (Step& step : list_steps(files, job)) {
    if (damaged.contains(step.version())) step.problem = "it was found damaged";
    try {
      if (step.usable() && is_kept(step, retention, kept)) {
        newest_usable = std::max(newest_usable, step.version());
        ++kept;
        sweep(files, job, step, newest_usable);
      } else if (newest_usable && may_go(files, job, step, newest_usable)) {
        remove_step(files, job, step.iteration);
        pruned.removed.push_back(step.iteration);
      }
    } catch (const StorageError& error) {
      if (error.is_about_storage()) throw;
      pruned.problems.emplace_back(error.what());
    }
  }
  return pruned;
}

}  // namespace ckpt::persist
