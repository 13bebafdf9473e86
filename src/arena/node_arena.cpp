#include "arena/node_arena.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>

#include "base/error.hpp"
#include "base/own_directory.hpp"
#include "base/same_file.hpp"

namespace ckpt::arena {
namespace {

namespace fs = std::filesystem;

// The number of a file "<prefix><n><suffix>".
std::optional<std::uint64_t> number_in(std::string_view name, std::string_view prefix, std::string_view suffix) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() <= prefix.size() + suffix.size())
    return std::nullopt;
  const std::string_view digits = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

std::vector<std::string> file_names(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().filename().string());
  if (error) throw Failure(CKPT_ERR_SYSTEM, "cannot list " + directory + ": " + error.message());
  std::sort(names.begin(), names.end());
  return names;
}

std::uint64_t random_word() {
  std::uint64_t word = 0;
  if (::getrandom(&word, sizeof(word), 0) != sizeof(word)) throw_errno(CKPT_ERR_SYSTEM, "cannot get random bytes");
  return word;
}

void initialize(NodeHeader& header, const std::string& job, const std::string& node) {
  header.format = format_version;
  header.arena_id = random_word();
  std::strncpy(header.job, job.c_str(), name_bytes_max - 1);
  std::strncpy(header.node, node.c_str(), name_bytes_max - 1);
  header.highest_commit.store(0, std::memory_order_relaxed);
  header.newest_seen.store(0, std::memory_order_relaxed);
  header.highest_epoch.store(0, std::memory_order_relaxed);
  header.newest_damaged.store(0, std::memory_order_relaxed);
  // The magic makes the header one; before it, whoever attaches begins again.
  std::atomic_ref(header.magic).store(node_magic, std::memory_order_release);
}

// Tools share the lock for an instant to see whether it is free, so one refusal means nothing yet.
void take_lock(int fd, const std::string& directory) {
  constexpr int attempts = 20;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return;
    if (errno != EWOULDBLOCK && errno != EINTR) throw_errno(CKPT_ERR_SYSTEM, "cannot lock the arena " + directory);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  throw Failure(CKPT_ERR_CLAIMED, "another agent uses the arena " + directory +
                                      "; give this node another name (option node) or stop that agent (ckptctl stop)");
}

UniqueFd open_locked(const std::string& path, const std::string& directory) {
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) throw_errno(CKPT_ERR_SYSTEM, "cannot open " + path);
  take_lock(file.get(), directory);
  return file;
}

void reserve_head(int fd, const std::string& directory) {
  const int error = ::posix_fallocate(fd, 0, page_bytes);
  if (error == 0) return;
  errno = error;
  throw_errno(CKPT_ERR_NO_SPACE, "the file system of " + directory +
                                     " has not even room for the arena's first page; free some, enlarge it (mount -o "
                                     "remount,size=...) or set the option arena_dir to another tmpfs");
}

std::string stopped_mark(const std::string& directory) { return directory + "/stopped"; }

std::string name_of(const char (&field)[name_bytes_max]) {
  return std::string(field, ::strnlen(field, name_bytes_max));
}

NodeMemory memory_of(const NodeHeader& header) {
  return {Version::from_word(header.highest_commit.load(std::memory_order_acquire)),
          Version::from_word(header.newest_seen.load(std::memory_order_acquire)),
          header.highest_epoch.load(std::memory_order_acquire),
          Version::from_word(header.newest_damaged.load(std::memory_order_acquire))};
}

void raise(Word64& word, std::uint64_t value) {
  if (value > word.load(std::memory_order_relaxed)) word.store(value, std::memory_order_release);
}

}  // namespace

void make_node_directory(const std::string& path) {
  make_own_directory(path, "arena_dir", 2);  // the job's and the one of all arenas above it
  struct stat directory {};
  if (::stat(path.c_str(), &directory) != 0 || directory.st_uid != ::geteuid())
    throw Failure(CKPT_ERR_INVALID, "the arena " + path + " belongs to another user; set arena_dir to one of your own");
}

NodeArena::NodeArena(std::string directory, const std::string& job, const std::string& node)
    : directory_(std::move(directory)) {
  make_node_directory(directory_);
  const std::string path = head_path();
  lock_ = open_locked(path, directory_);
  ::unlink(stopped_mark(directory_).c_str());
  reserve_head(lock_.get(), directory_);
  mapping_ = Mapping(lock_.get(), page_bytes, Mapping::Access::write, path);
  if (header()->magic == 0) initialize(*header(), job, node);
  if (header()->magic != node_magic || header()->format != format_version)
    throw Failure(CKPT_ERR_INVALID, path + " is not the head of an arena of this version; remove " + directory_ +
                                        " (ckptctl gc) or use another arena_dir");
  if (name_of(header()->job) != job || name_of(header()->node) != node)
    throw Failure(CKPT_ERR_INVALID, "the arena " + directory_ + " belongs to node " + name_of(header()->node) +
                                        " of job " + name_of(header()->job) + "; use another arena_dir");
}

bool NodeArena::is_removed() const { return !is_same_file(head_path(), lock_.get()); }

void NodeArena::make_again() {
  make_node_directory(directory_);
  UniqueFd lock = open_locked(head_path(), directory_);
  reserve_head(lock.get(), directory_);
  Mapping mapping(lock.get(), page_bytes, Mapping::Access::write, head_path());
  auto& made = *reinterpret_cast<NodeHeader*>(mapping.data());
  if (made.magic != 0)
    throw Failure(CKPT_ERR_CLAIMED, "another agent has used the arena " + directory_ + " since it was removed");
  const NodeHeader& old = *header();
  made.format = old.format;
  made.arena_id = old.arena_id;
  std::memcpy(made.job, old.job, sizeof(made.job));
  std::memcpy(made.node, old.node, sizeof(made.node));
  const NodeMemory known = memory_of(old);
  raise(made.highest_commit, known.highest_commit.word());
  raise(made.newest_seen, known.newest_seen.word());
  raise(made.highest_epoch, known.highest_epoch);
  std::atomic_ref(made.magic).store(node_magic, std::memory_order_release);
  std::swap(mapping_, mapping);
  std::swap(lock_, lock);
}

void NodeArena::mark_stopped() const {
  const UniqueFd mark(::open(stopped_mark(directory_).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!mark) throw_errno(CKPT_ERR_SYSTEM, "cannot make " + stopped_mark(directory_));
}

bool was_stopped(const std::string& directory) { return ::access(stopped_mark(directory).c_str(), F_OK) == 0; }

NodeMemory NodeArena::memory() const { return memory_of(*header()); }

void NodeArena::remember(const NodeMemory& memory) {
  raise(header()->highest_commit, memory.highest_commit.word());
  raise(header()->newest_seen, memory.newest_seen.word());
  raise(header()->highest_epoch, memory.highest_epoch);
  raise(header()->newest_damaged, memory.newest_damaged.word());
}

std::vector<Segment> NodeArena::attach_segments(std::vector<std::string>& removed) {
  std::vector<Segment> segments;
  for (const std::string& name : file_names(directory_)) {
    const auto number = number_in(name, "", ".segment");
    if (!number) continue;
    next_segment_ = std::max(next_segment_.load(), *number + 1);
    const std::string path = directory_ + "/" + name;
    try {
      segments.push_back(Segment::attach(path, Segment::Access::write));
    } catch (const Failure& failure) {
      if (failure.status() != CKPT_ERR_CORRUPT) throw;
      removed.emplace_back(failure.what());
      ::unlink(path.c_str());
    }
  }
  return segments;
}

std::vector<std::uint32_t> NodeArena::control_ranks() const {
  std::vector<std::uint32_t> ranks;
  for (const std::string& name : file_names(directory_))
    if (const auto rank = number_in(name, "rank-", ".control"); rank && *rank <= UINT32_MAX)
      ranks.push_back(static_cast<std::uint32_t>(*rank));
  return ranks;
}

Segment NodeArena::create_segment(const SegmentSpec& spec, unsigned threads) {
  return Segment::create(directory_ + "/" + std::to_string(next_segment_.fetch_add(1)) + ".segment", spec, threads);
}

void NodeArena::remove_segment(Segment segment) { unlink_same(segment.path(), segment.fd()); }

std::optional<ArenaSummary> inspect_arena(const std::string& directory) {
  const UniqueFd fd(::open((directory + "/node").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat file {};
  if (!fd || ::fstat(fd.get(), &file) != 0 || file.st_size < static_cast<off_t>(page_bytes)) return std::nullopt;
  const Mapping mapping(fd.get(), page_bytes, Mapping::Access::read, directory + "/node");
  const auto& header = *reinterpret_cast<const NodeHeader*>(mapping.data());
  if (header.magic != node_magic || header.format != format_version) return std::nullopt;
  ArenaSummary summary{name_of(header.job), name_of(header.node), memory_of(header), false};
  summary.in_use = ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0;
  return summary;
}

bool is_arena(const std::string& directory) {
  const UniqueFd fd(::open((directory + "/node").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  std::uint64_t magic = 0;
  return fd && ::pread(fd.get(), &magic, sizeof magic, 0) == sizeof magic && (magic == node_magic || magic == 0);
}

}  // namespace ckpt::arena
