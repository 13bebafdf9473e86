#include "coord/directory_store.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>

#include "base/error.hpp"
#include "base/private_files.hpp"

namespace ckpt::coord {
namespace {

namespace fs = std::filesystem;

std::uint64_t random_number() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

void make_private_directory(const fs::path& directory) {
  std::error_code unknown;  // ignored: if exists() fails, mkdir() fails, too, and its error says why
  if (directory.has_parent_path() && !fs::exists(directory.parent_path(), unknown) && !unknown)
    make_private_directory(directory.parent_path());
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    throw_errno(CKPT_ERR_SYSTEM,
                "cannot make the coordination directory " + directory.string() + " (option coordination)");
}

}  // namespace

bool is_key(std::string_view key) {
  constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  while (true) {
    const auto slash = key.find('/');
    const std::string_view part = key.substr(0, slash);
    if (part.empty() || part.size() > 64 || part.front() == '.' || part.find_first_not_of(letters) != part.npos)
      return false;
    if (slash == key.npos) return true;
    key.remove_prefix(slash + 1);
  }
}

DirectoryStore::DirectoryStore(std::string directory, RevisionHooks hooks)
    : directory_(std::move(directory)), hooks_(std::move(hooks)), writer_(random_number()) {
  // Anybody who could put records there, or replace the directory, could choose the job's token.
  make_own_directory(directory_, "coordination", 1);
}

std::string DirectoryStore::path_of(const std::string& key) const {
  if (!is_key(key))
    throw Failure(CKPT_ERR_INVALID, "\"" + key +
                                        "\" cannot name a coordination record; use names of 1 to 64 characters of A-Z "
                                        "a-z 0-9 . _ -, not beginning with a dot, with / between them");
  return directory_ + "/" + key;
}

// Distinguishes the drafts of all writers, on all machines.
std::string DirectoryStore::next_draft() {
  return std::to_string(writer_) + "-" + std::to_string(drafts_.fetch_add(1));
}

// The directory of the record's files, and the prefix of their names.
DirectoryStore::Place DirectoryStore::place_of(const std::string& key) const {
  const std::string path = path_of(key);
  const auto slash = path.rfind('/');
  return {path.substr(0, slash), path.substr(slash + 1)};
}

std::optional<Entry> DirectoryStore::get(const std::string& key) {
  const Place place = place_of(key);
  const auto files = RevisionFiles::open(place.directory, &hooks_);
  if (!files) return std::nullopt;
  RevisionFiles::Files listed = files->look(place.name);
  return files->read(place.name, key, listed);
}

std::optional<std::uint64_t> DirectoryStore::put_if(const std::string& key, const std::string& value,
                                                    std::uint64_t expected) {
  const Place place = place_of(key);
  if (value.size() > value_bytes_max)
    throw Failure(CKPT_ERR_INVALID, "the value of " + path_of(key) + " has " + std::to_string(value.size()) +
                                        " bytes, and the limit for a coordination record is 1 MiB: this is a bug in "
                                        "ckptengine; report it with the agent's log");
  auto files = RevisionFiles::open(place.directory, &hooks_);
  if (!files && expected != 0) return std::nullopt;
  if (!files) {
    make_private_directory(place.directory);
    files = RevisionFiles::open(place.directory, &hooks_);
    if (!files)
      throw Failure(CKPT_ERR_SYSTEM, "the coordination directory " + place.directory +
                                         " has vanished; check whether somebody removes the job's records");
  }
  return files->put(place.name, key, value, expected, next_draft());
}

std::vector<Entry> DirectoryStore::list(const std::string& prefix) {
  std::vector<Entry> entries;
  each_record(prefix, [&](const RevisionFiles& files, const std::string& name, const std::string& key, auto& listed) {
    if (auto entry = files.read(name, key, listed)) entries.push_back(std::move(*entry));
  });
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.key < b.key; });
  return entries;
}

void DirectoryStore::remove(const std::string& key) {
  const Place place = place_of(key);
  if (auto files = RevisionFiles::open(place.directory, &hooks_)) files->remove(place.name);
}

std::vector<Entry> DirectoryStore::undamaged() {
  std::vector<Entry> entries;
  for (const std::string& key : keys("")) try {
      if (auto entry = get(key)) entries.push_back(std::move(*entry));
    } catch (const Failure& failure) {
      if (failure.status() != CKPT_ERR_CORRUPT) throw;
    }
  return entries;
}

void DirectoryStore::reached(RevisionHooks::Step step) const {
  if (hooks_.reached) hooks_.reached(step);
}

// Moves the directory aside, and then compares its records with `seen` a second time. After the move, a writer that
// opens the directory by its name finds nothing. A writer that opened it earlier checks at the end whether it has
// moved, and fails if it has (RevisionFiles::put). So the second comparison sees every record whose write succeeded.
bool DirectoryStore::remove_all(const std::vector<Entry>& seen) {
  if (undamaged() != seen) return false;
  reached(RevisionHooks::Step::compared);
  const fs::path here = directory_;
  const fs::path aside = here.parent_path() / ("." + here.filename().string() + ".removed-" + next_draft());
  if (::rename(here.c_str(), aside.c_str()) != 0)
    throw_errno(CKPT_ERR_SYSTEM, "cannot remove the coordination directory " + directory_);
  reached(RevisionHooks::Step::moved);
  if (DirectoryStore(aside).undamaged() == seen) {
    std::error_code error;
    fs::remove_all(aside, error);
    if (error)
      throw Failure(CKPT_ERR_SYSTEM,
                    "cannot remove " + aside.string() + ": " + error.message() + "; remove it by hand");
    return true;
  }
  if (::rename(aside.c_str(), here.c_str()) != 0)
    throw_errno(CKPT_ERR_SYSTEM, "cannot move the job's records from " + aside.string() + " back to " + directory_,
                "an agent has just written new records to " + directory_ + "; once the job commits again, remove " +
                    aside.string());
  return false;
}

std::vector<std::string> DirectoryStore::keys(const std::string& prefix) {
  std::vector<std::string> found;
  each_record(prefix, [&](const RevisionFiles&, const std::string&, const std::string& key, const auto&) {
    found.push_back(key);
  });
  std::sort(found.begin(), found.end());
  return found;
}

// Lists each directory only once, for all of its records.
void DirectoryStore::each_record(const std::string& prefix, const TakeRecord& take) const {
  std::vector<std::string> folders = {prefix.substr(0, prefix.rfind('/') + 1)};  // "" if there is no slash
  while (!folders.empty()) {
    const std::string folder = folders.back();
    folders.pop_back();
    const auto files = RevisionFiles::open(directory_ + "/" + folder, &hooks_);
    if (!files) continue;
    RevisionFiles::Content content = files->content();
    for (auto& [name, listed] : content.records)
      if (listed.is_record() && (folder + name).starts_with(prefix)) take(*files, name, folder + name, listed);
    for (const std::string& name : content.directories)
      if ((folder + name).starts_with(prefix)) folders.push_back(folder + name + "/");
  }
}

}  // namespace ckpt::coord
