#include "coord/directory_store.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <random>
#include <thread>

#include "base/error.hpp"
#include "base/own_directory.hpp"
#include "kernels/digest.hpp"

namespace ckpt::coord {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view tag = "ckptengine record 1 ";
constexpr std::size_t first_line_bytes_max = 128;

std::uint64_t digest_of(std::string_view value, std::uint64_t revision) {
  const std::string both = std::string(value) + std::to_string(revision);
  return kernels::leaf_digest(both.data(), both.size());
}

std::string encode(const std::string& value, std::uint64_t revision) {
  std::array<char, first_line_bytes_max> line{};
  const int length = std::snprintf(line.data(), line.size(), "%s%llu %zu %016llx\n", tag.data(),
                                   static_cast<unsigned long long>(revision), value.size(),
                                   static_cast<unsigned long long>(digest_of(value, revision)));
  return std::string(line.data(), static_cast<std::size_t>(length)) + value;
}

template <class T>
bool take_number(std::string_view& text, T& value, int base, char separator) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end == text.data() + text.size() || *end != separator) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return true;
}

std::optional<Entry> decode(const std::string& key, std::string_view text) {
  Entry entry{key, {}, 0};
  std::size_t length_bytes = 0;
  std::uint64_t digest = 0;
  if (!text.starts_with(tag)) return std::nullopt;
  text.remove_prefix(tag.size());
  if (!take_number(text, entry.revision, 10, ' ') || !take_number(text, length_bytes, 10, ' ') ||
      !take_number(text, digest, 16, '\n'))
    return std::nullopt;
  if (entry.revision == 0 || text.size() != length_bytes || digest_of(text, entry.revision) != digest)
    return std::nullopt;
  entry.value = text;
  return entry;
}

// Most records are short, and all are read over and over.
std::string read_all(int fd, const std::string& path) {
  constexpr std::size_t text_bytes_max = value_bytes_max + first_line_bytes_max + 1;
  std::array<char, 4096> part;
  std::string text;
  while (text.size() < text_bytes_max) {
    const ssize_t got = ::read(fd, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno(CKPT_ERR_SYSTEM, "cannot read the coordination record " + path);
    if (got == 0) break;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  return text;
}

// A record replaced between open and read can be stale on network file systems; the second look finds the new one.
std::optional<Entry> read_record(const std::string& key, const std::string& path) {
  for (int attempt = 0;; ++attempt) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file && errno == ENOENT) return std::nullopt;
    if (!file && errno == ESTALE && attempt == 0) continue;
    if (!file) throw_errno(CKPT_ERR_SYSTEM, "cannot open the coordination record " + path);
    if (auto entry = decode(key, read_all(file.get(), path))) return entry;
    throw Failure(CKPT_ERR_CORRUPT,
                  "the coordination record " + path +
                      " is damaged; stop the job's agents and remove its records with ckptctl gc --records");
  }
}

void write_and_sync(const std::string& path, const std::string& text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file) throw_errno(CKPT_ERR_SYSTEM, "cannot create the coordination record " + path);
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t put = ::write(file.get(), text.data() + written, text.size() - written);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_errno(CKPT_ERR_SYSTEM, "cannot write the coordination record " + path);
    written += static_cast<std::size_t>(put);
  }
  if (::fsync(file.get()) != 0) throw_errno(CKPT_ERR_SYSTEM, "cannot sync the coordination record " + path);
}

// A record that is not in place yet; what is left of it at the end is removed.
struct Draft {
  explicit Draft(std::string draft_path) : path(std::move(draft_path)) {}
  ~Draft() { ::unlink(path.c_str()); }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;
  const std::string path;
};

void sync_directory(const fs::path& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || (::fsync(fd.get()) != 0 && errno != EINVAL))
    throw_errno(CKPT_ERR_SYSTEM, "cannot sync the coordination directory " + directory.string());
}

std::uint64_t random_number() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

void make_private_directory(const fs::path& directory) {
  std::error_code unknown;  // what cannot be looked at cannot be made either, and that says why
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

DirectoryStore::DirectoryStore(std::string directory, std::int64_t timeout_ms)
    : directory_(std::move(directory)), timeout_ms_(timeout_ms), writer_(random_number()) {
  // Who could put records there, or another directory in its place, could have chosen the token.
  make_own_directory(directory_, "coordination", 1);
}

std::string DirectoryStore::path_of(const std::string& key) const {
  if (!is_key(key)) throw Failure(CKPT_ERR_INVALID, "\"" + key + "\" cannot name a coordination record");
  return directory_ + "/" + key;
}

UniqueFd DirectoryStore::lock_file(const char* name, Deadline deadline) const {
  const std::string path = directory_ + "/" + name;
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file) throw_errno(CKPT_ERR_SYSTEM, "cannot open the coordination lock " + path);
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) throw_errno(CKPT_ERR_SYSTEM, "cannot lock " + path);
    if (deadline.passed())
      throw Failure(CKPT_ERR_TIMEOUT, "another process kept the coordination lock " + path + " for " +
                                          std::to_string(timeout_ms_) + " ms; look for a stopped ckptd");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // flock has no timeout of its own
  }
  return file;
}

// Tells the drafts of all writers, on whatever machine, from each other.
std::string DirectoryStore::drafts_suffix() {
  return "." + std::to_string(writer_) + "." + std::to_string(drafts_.fetch_add(1)) + ".new";
}

// Whoever waits for the lock holds the turn meanwhile, so that one who has just had the lock cannot take it again at
// once, and again, while others only look every now and then.
UniqueFd DirectoryStore::lock(Deadline deadline) const {
  const UniqueFd turn = lock_file(".turn", deadline);
  return lock_file(".lock", deadline);
}

std::optional<Entry> DirectoryStore::get(const std::string& key) { return read_record(key, path_of(key)); }

std::optional<std::uint64_t> DirectoryStore::put_if(const std::string& key, const std::string& value,
                                                    std::uint64_t expected) {
  const std::string path = path_of(key);
  if (value.size() > value_bytes_max) throw Failure(CKPT_ERR_INVALID, "the value of " + path + " is too long");
  const fs::path parent = fs::path(path).parent_path();
  const auto is_due = [&] {
    const auto current = read_record(key, path);
    return (current ? current->revision : 0) == expected;
  };
  if (!is_due()) return std::nullopt;
  make_private_directory(parent);
  const Draft draft(parent.string() + "/." + fs::path(path).filename().string() + drafts_suffix());
  write_and_sync(draft.path, encode(value, expected + 1));
  {
    // As short as it can be, with nothing in it that waits for a disk: a process that is stopped while it holds the
    // lock keeps all others from writing.
    const UniqueFd held = lock(Deadline::in_ms(timeout_ms_));
    if (!is_due()) return std::nullopt;
    if (::rename(draft.path.c_str(), path.c_str()) != 0)
      throw_errno(CKPT_ERR_SYSTEM, "cannot put the coordination record " + path + " in place");
  }
  sync_directory(parent);
  return expected + 1;
}

std::vector<Entry> DirectoryStore::list(const std::string& prefix) {
  std::vector<Entry> entries;
  for (const std::string& key : keys_below(prefix))
    if (auto entry = read_record(key, path_of(key))) entries.push_back(std::move(*entry));
  return entries;
}

std::vector<std::string> DirectoryStore::keys(const std::string& prefix) { return keys_below(prefix); }

void DirectoryStore::remove(const std::string& key) {
  const std::string path = path_of(key);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    throw_errno(CKPT_ERR_SYSTEM, "cannot remove the coordination record " + path);
}

std::vector<Entry> DirectoryStore::undamaged() const {
  std::vector<Entry> entries;
  for (const std::string& key : keys_below("")) try {
      if (auto entry = read_record(key, path_of(key))) entries.push_back(std::move(*entry));
    } catch (const Failure& failure) {
      if (failure.status() != CKPT_ERR_CORRUPT) throw;
    }
  return entries;
}

// Of the records there are, in order.
std::vector<std::string> DirectoryStore::keys_below(const std::string& prefix) const {
  std::vector<std::string> keys;
  std::error_code error;
  const std::string folder = prefix.substr(0, prefix.rfind('/') + 1);  // empty where there is no slash
  fs::recursive_directory_iterator at(directory_ + "/" + folder, error), end;
  for (; !error && at != end; at.increment(error)) {
    const std::string key = fs::path(at->path()).lexically_relative(directory_).generic_string();
    if (key.starts_with(prefix) && is_key(key) && at->is_regular_file(error)) keys.push_back(key);
  }
  if (error && error != std::errc::no_such_file_or_directory)
    throw Failure(CKPT_ERR_SYSTEM, "cannot list the coordination directory " + directory_ + ": " + error.message());
  std::sort(keys.begin(), keys.end());
  return keys;
}

}  // namespace ckpt::coord
