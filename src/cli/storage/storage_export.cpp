// `ckptctl export`, for people who take their state elsewhere. The code that needs torch is written in Python
// (python/ckptengine/export.py) and reads a checkpoint's folder on a local disk. This file finds or makes that folder.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/unique_fd.hpp"
#include "cli/storage/storage_commands.hpp"
#include "cli/table.hpp"
#include "persist/transfer.hpp"

namespace ckpt::cli {
namespace {

namespace fs = std::filesystem;
using persist::CheckpointRecord;

[[noreturn]] void refuse(const std::string& sentence) { throw Failure(CKPT_ERR_INVALID, sentence); }

// A folder that is removed with its owner.
class Scratch {
 public:
  explicit Scratch(const fs::path& beside) : path_((beside / ".ckptctl-export-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) throw_errno(CKPT_ERR_SYSTEM, "cannot make a folder in " + beside.string());
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// ---- Copying a checkpoint as it is ----

bool belongs_to(const CheckpointRecord& record, const std::string& file) {
  const bool is_whole = file.ends_with(persist::data_suffix) || file.ends_with(persist::leaves_suffix) ||
                        file.ends_with(persist::record_suffix);
  return file == persist::manifest_name ||
         (is_whole && persist::incarnation_in(file) == record.checkpoint.incarnation());
}

void copy_file(persist::FileSystem& files, const std::string& from, std::uint64_t size_bytes, const std::string& to,
               Progress& progress) {
  const UniqueFd copy(::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!copy) throw_errno(CKPT_ERR_SYSTEM, "cannot create " + to);
  std::uint64_t next = 0;
  persist::read_blocks(
      files, from,
      [&](persist::Extent& extent) {
        if (next >= size_bytes) return false;
        extent = {next, std::min<std::uint64_t>(files.options().block_bytes, size_bytes - next)};
        next += extent.size_bytes;
        return true;
      },
      [&](const persist::Extent& extent, const std::byte* data) {
        for (std::size_t done = 0; done < extent.size_bytes;) {
          const ssize_t wrote =
              ::pwrite(copy.get(), data + done, extent.size_bytes - done, static_cast<off_t>(extent.offset + done));
          if (wrote < 0) throw_errno(CKPT_ERR_SYSTEM, "cannot write " + to);
          done += static_cast<std::size_t>(wrote);
        }
        progress.advance(extent.size_bytes);
      });
  if (::fsync(copy.get()) != 0) throw_errno(CKPT_ERR_SYSTEM, "cannot sync " + to);
}

std::string checkpoint_folder(const std::string& location, const CheckpointRecord& record) {
  return location + "/" + record.job + "/" + persist::folder_name(record.checkpoint.iteration());
}

// Copies all files of a checkpoint, the manifest last. So `location` has the whole checkpoint or none of it.
void copy_checkpoint(Storage& storage, const CheckpointRecord& record, const std::string& location,
                     Progress& progress) {
  const std::string stored = storage.job() + "/" + persist::folder_name(record.checkpoint.iteration());
  const fs::path to = checkpoint_folder(location, record);
  if (fs::exists(to)) refuse(to.string() + " already exists; remove it, or name another directory");
  std::vector<std::pair<std::string, std::uint64_t>> files;
  std::uint64_t total_bytes = 0;
  for (const persist::DirectoryEntry& entry : storage.files().list(stored)) {
    if (entry.is_directory || !belongs_to(record, entry.name)) continue;
    files.emplace_back(entry.name, storage.files().file_size(stored + "/" + entry.name).value_or(0));
    total_bytes += files.back().second;
  }
  std::stable_partition(files.begin(), files.end(),
                        [](const auto& file) { return file.first != persist::manifest_name; });
  std::error_code error;
  fs::create_directories(to, error);
  if (error) throw Failure(CKPT_ERR_SYSTEM, "cannot make the directory " + to.string() + ": " + error.message());
  progress.begin("copying checkpoint " + std::to_string(record.checkpoint.iteration()), total_bytes);
  for (const auto& [name, size_bytes] : files)
    copy_file(storage.files(), stored + "/" + name, size_bytes, to / name, progress);
  progress.end();
}

// ---- Python ----

int run(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  if (const int error = ::posix_spawnp(&child, arguments[0], nullptr, nullptr, arguments.data(), environ); error != 0)
    throw Failure(CKPT_ERR_SYSTEM, "cannot start " + words[0] + ": " + std::strerror(error) +
                                       "; with --python, name a Python that has torch");
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Checks early, before much is read, that this Python can do it.
void check_python(const std::string& python) {
  constexpr const char* program =
      "import importlib.util as u, sys\n"
      "sys.exit(next((i for i, name in enumerate(('ckptengine', 'torch'), 3) if u.find_spec(name) is None), 0))";
  switch (run({python, "-c", program})) {
    case 0:
      return;
    case 3:
      refuse(python +
             " has no package ckptengine; install it, put it on PYTHONPATH, or name another Python with --python");
    case 4:
      refuse(python + " has no torch; install it (pip install torch), or name another Python with --python");
    default:
      refuse(python + " is not a working Python; with --python, name a Python that has torch");
  }
}

// ---- The command ----

const std::string& target_of(const ExportOptions& options) {
  return !options.raw.empty() ? options.raw : !options.dcp.empty() ? options.dcp : options.file;
}

fs::path parent_of(const std::string& path) {
  const fs::path normal = fs::absolute(path).lexically_normal();
  return normal.has_filename() ? normal.parent_path() : normal.parent_path().parent_path();
}

// Checks whatever can be checked before anything is read.
void check_targets(const ExportOptions& options) {
  const int targets = !options.file.empty() + !options.dcp.empty() + !options.raw.empty();
  if (targets != 1) refuse("name exactly one target: --to FILE, --dcp DIRECTORY or --raw DIRECTORY");
  if (!options.raw.empty() && !options.shard.empty()) refuse("--raw copies whole checkpoints; leave out --shard");
  if (!options.file.empty() && fs::exists(options.file))
    refuse(options.file + " already exists; remove it, or name another file");
  if (!options.dcp.empty() && fs::exists(options.dcp) && !(fs::is_directory(options.dcp) && fs::is_empty(options.dcp)))
    refuse(options.dcp + " already exists; remove it, or name another directory");
  if (!options.raw.empty()) return;
  if (const fs::path parent = parent_of(target_of(options)); !fs::is_directory(parent))
    refuse("there is no directory " + parent.string() + " to export to; make it first");
  check_python(options.python);
}

void check_bytes(Storage& storage, const CheckpointRecord& record, const std::string& shard, Progress& progress) {
  const auto shards = shard.empty() ? persist::files_of(record) : std::vector{find_shard(storage, record, shard)};
  std::uint64_t bytes = 0;
  for (const persist::ShardFile& each : shards) bytes += data_bytes(each);
  progress.begin("reading checkpoint " + std::to_string(record.checkpoint.iteration()), bytes);
  const auto problems = read_shards(storage.files(), record, shards, progress);
  progress.end();
  if (!problems.empty()) throw Failure(CKPT_ERR_CORRUPT, problems.front() + "; nothing was exported");
}

// Makes a copy on a local disk and verifies it there, so that the source is read only once.
void copy_checked(Storage& storage, const CheckpointRecord& record, const std::string& directory,
                  const StorageScope& scope, const ExportOptions& options, Progress& progress) {
  StorageScope local = scope;
  local.location = fs::absolute(directory).string();
  copy_checkpoint(storage, record, local.location, progress);
  if (!options.verify) return;
  try {
    Storage copy(local);
    check_bytes(copy, record, options.shard, progress);
  } catch (const Failure&) {
    std::error_code ignored;
    fs::remove_all(checkpoint_folder(local.location, record), ignored);
    throw;
  }
}

void convert(const std::string& folder, const ExportOptions& options) {
  std::vector<std::string> words = {options.python, "-m", "ckptengine.export", folder,
                                    (options.file.empty() ? "--dcp=" : "--to=") + target_of(options)};
  if (!options.shard.empty()) words.push_back("--shard=" + options.shard);
  if (const int status = run(words); status != 0)
    throw Failure(CKPT_ERR_SYSTEM, "the export by " + options.python + " failed (exit status " +
                                       std::to_string(status) + "); its message above says why");
}

// The checkpoints that "latest" leaves out although they may be newer.
std::vector<std::string> passed_over(const std::vector<persist::StoredCheckpoint>& stored_checkpoints,
                                     const CheckpointRecord& taken) {
  std::vector<std::string> sentences;
  for (const persist::StoredCheckpoint& stored : stored_checkpoints)
    if (!stored.usable() && stored.may_be_newer_than(taken.checkpoint))
      sentences.push_back(stored_text(stored) + ": " + problem_text(stored));
  return sentences;
}

}  // namespace

Result export_checkpoint(const StorageScope& scope, const ExportOptions& options, Progress& progress) {
  check_targets(options);
  Storage storage(scope);
  const auto stored_checkpoints = storage.stored_checkpoints();
  const CheckpointRecord& record = find_usable_checkpoint(storage, stored_checkpoints, options.checkpoint);
  if (!options.shard.empty()) find_shard(storage, record, options.shard);
  if (!options.raw.empty()) {
    copy_checked(storage, record, options.raw, scope, options, progress);
  } else if (scope.location.starts_with('/')) {
    if (options.verify) check_bytes(storage, record, options.shard, progress);
    convert(checkpoint_folder(scope.location, record), options);
  } else {
    const Scratch scratch(parent_of(target_of(options)));
    copy_checked(storage, record, scratch.path(), scope, options, progress);
    convert(checkpoint_folder(scratch.path(), record), options);
  }
  Result result;
  result.json = {{"iteration", record.checkpoint.iteration()}, {"to", target_of(options)}};
  result.text = "exported checkpoint " + std::to_string(record.checkpoint.iteration()) + " of " + storage.job_label() +
                " to " + target_of(options) + "\n";
  if (options.checkpoint != "latest") return result;
  result.json["passed_over"] = passed_over(stored_checkpoints, record);
  for (const std::string& sentence : passed_over(stored_checkpoints, record))
    result.text += "passed over " + sentence + "\n";
  return result;
}

}  // namespace ckpt::cli
