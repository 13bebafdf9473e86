#include "coord/revision_files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <memory>
#include <thread>

#include "base/error.hpp"
#include "coord/record_file.hpp"

namespace ckpt::coord {
namespace {

using Step = RevisionHooks::Step;

// Attempts to read a record. Each failed one means that another writer has replaced the record meanwhile.
constexpr int reads_max = 1000;
// A listing may find incarnation@0 and no revision this many times in a row. After that, somebody has removed the
// newest revision by hand.
constexpr int empty_looks_max = 50;
constexpr std::chrono::milliseconds between_looks{2};

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

std::string revision_file(const std::string& name, std::uint64_t revision) {
  return name + "@" + std::to_string(revision);
}

// The number that follows `prefix` in `file`; `rest` gets what follows the number. Returns nothing if there is no such
// prefix or number.
std::optional<std::uint64_t> number_after(std::string_view file, const std::string& prefix, std::string_view& rest) {
  if (!file.starts_with(prefix)) return std::nullopt;
  file.remove_prefix(prefix.size());
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(file.data(), file.data() + file.size(), number);
  if (error != std::errc()) return std::nullopt;
  rest = file.substr(static_cast<std::size_t>(end - file.data()));
  return number;
}

bool is_same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

}  // namespace

RevisionFiles::RevisionFiles(std::string path, UniqueFd fd, const RevisionHooks* hooks)
    : path_(std::move(path)), fd_(std::move(fd)), hooks_(hooks) {}

std::optional<RevisionFiles> RevisionFiles::open(const std::string& path, const RevisionHooks* hooks) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd) return RevisionFiles(path, std::move(fd), hooks);
  if (errno == ENOENT) return std::nullopt;
  throw_errno(CKPT_ERR_SYSTEM, "cannot open the coordination directory " + path);
}

// Opens the directory again by its path, because this makes an NFS client ask the server for changes. Returns nothing
// if the directory is gone, or if another one has taken its place.
UniqueFd RevisionFiles::reopened() const {
  const auto fail = [this] { throw_errno(CKPT_ERR_SYSTEM, "cannot list the coordination directory " + path_); };
  UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd && errno != ENOENT) fail();
  if (!fd) return fd;
  struct stat now {
  }, own{};
  if (::fstat(fd.get(), &now) != 0 || ::fstat(fd_.get(), &own) != 0) fail();
  return is_same_file(now, own) ? std::move(fd) : UniqueFd();
}

void RevisionFiles::each_file(const std::function<void(const std::string&, bool)>& take) const {
  const auto fail = [this] { throw_errno(CKPT_ERR_SYSTEM, "cannot list the coordination directory " + path_); };
  UniqueFd fd = reopened();
  if (!fd) return;
  const std::unique_ptr<DIR, CloseDirectory> directory(::fdopendir(fd.get()));
  if (directory == nullptr) fail();
  fd.release();
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(directory.get());
    if (entry == nullptr && errno != 0 && errno != ENOENT) fail();
    if (entry == nullptr) return;
    take(entry->d_name, is_directory(*entry));
  }
}

// Notes the file `file` if it belongs to the record `name`.
void RevisionFiles::Files::take(const std::string& name, const std::string& file) {
  std::string_view rest;
  if (file == name) plain = true;
  if (const auto revision = number_after(file, name + "@", rest); revision && rest.empty()) {
    if (*revision == 0) marked = true;
    if (*revision != 0) revisions.insert(*revision);
  }
  if (const auto revision = number_after(file, "." + name + "@", rest); revision && rest.starts_with('.'))
    drafts.emplace_back(*revision, file);
}

bool RevisionFiles::is_directory(const dirent& entry) const {
  if (entry.d_type != DT_UNKNOWN) return entry.d_type == DT_DIR;
  struct stat info {};
  return ::fstatat(fd_.get(), entry.d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode);
}

RevisionFiles::Files RevisionFiles::look(const std::string& name) const {
  Files files;
  each_file([&](const std::string& file, bool is_directory) {
    if (!is_directory) files.take(name, file);
  });
  return files;
}

RevisionFiles::Content RevisionFiles::content() const {
  Content content;
  each_file([&](const std::string& file, bool is_directory) {
    const std::string name = file.substr(0, file.find('@'));
    if (!is_key(name)) return;
    if (is_directory)
      content.directories.push_back(name);
    else
      content.records[name].take(name, file);
  });
  return content;
}

bool RevisionFiles::exists(const std::string& file) const {
  struct stat info {};
  if (::fstatat(fd_.get(), file.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) return true;
  if (errno != ENOENT && errno != ESTALE)
    throw_errno(CKPT_ERR_SYSTEM, "cannot look for the coordination record " + path_of(file));
  return false;
}

std::optional<Entry> RevisionFiles::read(const std::string& name, const std::string& key, Files& files) const {
  for (int attempt = 0, empty = 0; attempt < reads_max; ++attempt) {
    if (attempt > 0) files = look(name);
    if (!files.is_record()) {
      if (!files.marked || ++empty == empty_looks_max) return std::nullopt;
      std::this_thread::sleep_for(between_looks);
      continue;
    }
    const std::string newest = files.revisions.empty() ? name : revision_file(name, files.newest());
    auto entry = read_record(fd_.get(), newest, key, path_of(newest));
    if (!entry) continue;
    if (!files.revisions.empty() && entry->revision != files.newest())
      throw Failure(CKPT_ERR_CORRUPT,
                    "the coordination record " + path_of(newest) +
                        " is damaged: the number in its name is not the number in the file; stop the job's "
                        "agents (ckptctl stop), and remove its records (ckptctl gc --records)");
    if (!exists(revision_file(name, entry->revision + 1)) && exists(newest)) return entry;
  }
  throw Failure(CKPT_ERR_TIMEOUT,
                "the coordination record " + path_of(name) +
                    " changed at every attempt to read it; find agents that end and start again and again");
}

std::optional<std::uint64_t> RevisionFiles::put(const std::string& name, const std::string& key,
                                                const std::string& value, std::uint64_t expected,
                                                const std::string& writer) {
  Files before = look(name);
  const auto current = read(name, key, before);
  if ((current ? current->revision : 0) != expected) return std::nullopt;
  reached(Step::read);
  const std::uint64_t revision = expected + 1;
  const std::string draft = "." + revision_file(name, revision) + "." + writer + ".new";
  struct Draft {  // removes the draft's name, however this function ends
    const RevisionFiles& files;
    const std::string& name;
    ~Draft() { files.unlink(name); }
  } const removed{*this, draft};
  const UniqueFd file = write_record(fd_.get(), draft, encode_record(value, revision), path_of(draft));
  reached(Step::drafted);
  const Files now = look(name);
  if (now.newest() != before.newest() || now.is_record() != before.is_record()) return std::nullopt;
  reached(Step::looked);
  if (!place(draft, file.get(), revision_file(name, revision))) return std::nullopt;
  reached(Step::placed);
  if (::fsync(fd_.get()) != 0 && errno != EINVAL)
    throw_errno(CKPT_ERR_SYSTEM, "cannot write the coordination directory " + path_ + " to its disk");
  reached(Step::synced);
  if (!reopened())
    throw Failure(CKPT_ERR_SYSTEM, "the coordination directory " + path_ +
                                       " vanished while a record was written; "
                                       "check whether somebody removes the job's records");
  sweep(name, revision);
  return revision;
}

bool RevisionFiles::place(const std::string& draft, int draft_fd, const std::string& target) const {
  const int result = hooks_ != nullptr && hooks_->link
                         ? hooks_->link(fd_.get(), draft.c_str(), target.c_str())
                         : ::linkat(fd_.get(), draft.c_str(), fd_.get(), target.c_str(), 0);
  if (result == 0) return true;
  const int error = errno;
  if (is_same(draft_fd, target)) return true;
  if (error == EEXIST || error == ENOENT) return false;  // ENOENT: a newer writer swept the draft
  errno = error;
  if (error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK)
    throw_errno(CKPT_ERR_SYSTEM, "the file system of " + path_ +
                                     " has no hard links, which coordination needs; choose another directory, or "
                                     "etcd (option coordination)");
  throw_errno(CKPT_ERR_SYSTEM, "cannot write the coordination record " + path_of(target));
}

bool RevisionFiles::is_same(int draft_fd, const std::string& target) const {
  struct stat own {
  }, there{};
  return ::fstat(draft_fd, &own) == 0 && ::fstatat(fd_.get(), target.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 &&
         is_same_file(own, there);
}

// Removes the file. Returns whether it is gone now.
bool RevisionFiles::unlink(const std::string& file) const {
  return ::unlinkat(fd_.get(), file.c_str(), 0) == 0 || errno == ENOENT;
}

// Ends at the first step that fails, because the proof at the top of the header depends on the order of the steps. The
// next sweep removes what this one leaves.
void RevisionFiles::sweep(const std::string& name, std::uint64_t won) const {
  const Files files = look(name);
  reached(Step::listed);
  if (!files.marked) {
    const std::string mark = revision_file(name, 0);
    const UniqueFd file(::openat(fd_.get(), mark.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) return;
  }
  for (const auto& [revision, draft] : files.drafts)
    if (revision <= won && !unlink(draft)) return;
  reached(Step::cleared);
  if (files.plain && !unlink(name)) return;
  for (const std::uint64_t revision : files.revisions) {
    if (revision >= won || !unlink(revision_file(name, revision))) return;
    reached(Step::swept);
  }
}

void RevisionFiles::remove(const std::string& name) {
  const Files files = look(name);
  std::vector<std::string> gone = {revision_file(name, 0)};
  for (const auto& [revision, draft] : files.drafts) gone.push_back(draft);
  if (files.plain) gone.push_back(name);
  for (const std::uint64_t revision : files.revisions) gone.push_back(revision_file(name, revision));
  for (const std::string& file : gone)
    if (!unlink(file)) throw_errno(CKPT_ERR_SYSTEM, "cannot remove the coordination record " + path_of(file));
}

}  // namespace ckpt::coord
