#include "arena/node_arena.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/private_files.hpp"
#include "base/same_file.hpp"
#include "kernels/digest.hpp"

namespace ckpt::arena {
namespace {

namespace fs = std::filesystem;

// The number n in a file name "<prefix><n><suffix>"; nothing if the name does not have this form.
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

void take_lock(int fd, const std::string& directory) {
  constexpr std::int64_t wait_limit_ms = 100;
  if (!lock_alone(fd, directory, wait_limit_ms))
    throw Failure(CKPT_ERR_CLAIMED,
                  "another agent uses the arena " + directory +
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
                                     " has no room for the arena's first page; free memory there, enlarge it (mount -o "
                                     "remount,size=...) or set the option arena_dir to another tmpfs");
}

constexpr std::uint32_t format_before = 3;

bool is_known_format(std::uint32_t format) { return format == node_format_version || format == format_before; }

std::string stopped_mark(const std::string& directory) { return directory + "/stopped"; }

std::string name_of(const char (&field)[name_bytes_max]) {
  return std::string(field, ::strnlen(field, name_bytes_max));
}

NodeMemory memory_of_format_3(const NodeHeader& header) {
  const auto& words = header.format_3;
  return {CheckpointId::from_word(words[0]), CheckpointId::from_word(words[1]), words[2],
          CheckpointId::from_word(words[3])};
}

template <class Words>
std::uint64_t check_of(const NodeHeader& header, const Words& words) {
  std::string bytes(reinterpret_cast<const char*>(words.data()), sizeof(words[0]) * words.size());
  bytes.append(header.job, name_bytes_max).append(header.node, name_bytes_max);
  return kernels::leaf_digest(bytes.data(), bytes.size());
}

Word64& word(NodeWords& copy, std::size_t index) { return (&copy.arena_id)[index]; }
const Word64& word(const NodeWords& copy, std::size_t index) { return (&copy.arena_id)[index]; }

template <class T>
void raise(T& state, const T& value) {
  state = std::max(state, value);
}

}  // namespace

void make_node_directory(const std::string& path) {
  make_own_directory(path, "arena_dir", 2);  // also checks the job's directory and `arena_dir`, which are above it
  struct stat directory {};
  if (::stat(path.c_str(), &directory) != 0 || directory.st_uid != ::geteuid())
    throw Failure(
        CKPT_ERR_INVALID,
        "the arena " + path + " belongs to another user; set arena_dir to a directory that belongs to this user");
}

NodeArena::NodeArena(std::string directory, const std::string& job, const std::string& node)
    : directory_(std::move(directory)) {
  make_node_directory(directory_);
  const std::string path = head_path();
  lock_ = open_locked(path, directory_);
  ::unlink(stopped_mark(directory_).c_str());
  reserve_head(lock_.get(), directory_);
  mapping_ = Mapping(lock_.get(), page_bytes, Mapping::Access::write, path);
  if (header()->magic == 0) initialize(job, node);
  if (header()->magic != node_magic || !is_known_format(header()->format))
    throw Failure(CKPT_ERR_INVALID, path + " does not belong to an arena of this version; remove " + directory_ +
                                        " (ckptctl gc) or use another arena_dir");
  if (name_of(header()->job) != job || name_of(header()->node) != node)
    throw Failure(CKPT_ERR_INVALID, "the arena " + directory_ + " belongs to node " + name_of(header()->node) +
                                        " of job " + name_of(header()->job) +
                                        "; set the option arena_dir to another directory");
  recall();
}

// Stores the magic last. If this agent dies before that, the next agent initializes the header again.
void NodeArena::initialize(const std::string& job, const std::string& node) {
  std::strncpy(header()->job, job.c_str(), name_bytes_max - 1);
  std::strncpy(header()->node, node.c_str(), name_bytes_max - 1);
  state_.arena_id = header()->arena_id = random_word();
  header()->format = node_format_version;
  store();
  std::atomic_ref(header()->magic).store(node_magic, std::memory_order_release);
}

std::array<std::uint64_t, node_words_checked> NodeArena::words_of(const NodeState& state) {
  const NodeMemory& memory = state.memory;
  return {state.arena_id,
          state.number,
          memory.highest_commit.word(),
          memory.newest_seen.word(),
          memory.highest_epoch,
          memory.newest_damaged.word(),
          state.token[0],
          state.token[1],
          state.token[2],
          state.token[3]};
}

std::optional<NodeArena::NodeState> NodeArena::read(const NodeHeader& header, const NodeWords& copy) {
  std::array<std::uint64_t, node_words_checked> words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = word(copy, i).load(std::memory_order_acquire);
  if (copy.check.load(std::memory_order_acquire) != check_of(header, words)) return std::nullopt;
  return NodeState{words[0],
                   words[1],
                   {CheckpointId::from_word(words[2]), CheckpointId::from_word(words[3]), words[4],
                    CheckpointId::from_word(words[5])},
                   {words[6], words[7], words[8], words[9]}};
}

// Prefers the second copy. store() writes it first, so it is the newer one if an agent died in between.
void NodeArena::recall() {
  NodeHeader& head = *header();
  const auto first = read(head, head.copies[0]), second = read(head, head.copies[1]);
  if (head.format == format_before) {
    state_ = {head.arena_id, 0, memory_of_format_3(head), {}};
  } else if (second || first) {
    state_ = second ? *second : *first;
  } else {
    state_ = {head.arena_id, 0, {}, {}};
    damage_ = "the file " + directory_ +
              "/node is damaged, and so is the second copy of its content. This node no longer knows which checkpoints "
              "were committed; the other nodes still know. If this happens again, test the machine's memory";
  }
  if (first.has_value() != second.has_value() && head.format != format_before)
    damage_ = "the file " + directory_ +
              "/node has its content twice, and one of the two copies is damaged or half written. The agent uses the "
              "other one";
  store();
  std::atomic_ref(head.format).store(node_format_version, std::memory_order_release);
}

// Writes one copy after the other, so that one of them is complete at each moment.
void NodeArena::store() {
  const auto words = words_of(state_);
  const std::uint64_t check = check_of(*header(), words);
  for (NodeWords* const copy : {&header()->copies[1], &header()->copies[0]}) {
    for (std::size_t i = 0; i < words.size(); ++i) word(*copy, i).store(words[i], std::memory_order_release);
    copy->check.store(check, std::memory_order_release);
  }
}

std::optional<std::uint32_t> NodeArena::number() const {
  return state_.number == 0 ? std::nullopt : std::optional(static_cast<std::uint32_t>(state_.number - 1));
}

std::string NodeArena::token() const {
  std::string text;
  for (const std::uint64_t part : state_.token) {
    std::array<char, 17> digits{};
    std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(part));
    text += digits.data();
  }
  return text.find_first_not_of('0') == text.npos ? "" : text;
}

void NodeArena::remember_place(std::uint32_t number, const std::string& token) {
  constexpr std::size_t digits = 16;
  state_.number = std::uint64_t{number} + 1;
  for (std::size_t i = 0; i < state_.token.size(); ++i) {
    state_.token[i] = 0;
    const std::string part = token.substr(std::min(i * digits, token.size()), digits);
    std::from_chars(part.data(), part.data() + part.size(), state_.token[i], 16);
  }
  store();
}

bool NodeArena::is_removed() const { return !is_same_file(head_path(), lock_.get()); }

void NodeArena::make_again() {
  make_node_directory(directory_);
  UniqueFd lock = open_locked(head_path(), directory_);
  reserve_head(lock.get(), directory_);
  Mapping mapping(lock.get(), page_bytes, Mapping::Access::write, head_path());
  auto& made = *reinterpret_cast<NodeHeader*>(mapping.data());
  if (made.magic != 0)
    throw Failure(CKPT_ERR_CLAIMED, "somebody removed the arena " + directory_ +
                                        ", and another agent has made it again; stop one of the two agents");
  const NodeHeader& old = *header();
  made.format = node_format_version;
  made.arena_id = old.arena_id;
  std::memcpy(made.job, old.job, sizeof(made.job));
  std::memcpy(made.node, old.node, sizeof(made.node));
  std::swap(mapping_, mapping);
  std::swap(lock_, lock);
  store();
  std::atomic_ref(header()->magic).store(node_magic, std::memory_order_release);
}

void NodeArena::mark_stopped() const {
  const UniqueFd mark(::open(stopped_mark(directory_).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!mark) throw_errno(CKPT_ERR_SYSTEM, "cannot make " + stopped_mark(directory_));
}

bool was_stopped(const std::string& directory) { return ::access(stopped_mark(directory).c_str(), F_OK) == 0; }

NodeMemory NodeArena::memory() const { return state_.memory; }

void NodeArena::remember(const NodeMemory& memory) {
  raise(state_.memory.highest_commit, memory.highest_commit);
  raise(state_.memory.newest_seen, memory.newest_seen);
  raise(state_.memory.highest_epoch, memory.highest_epoch);
  raise(state_.memory.newest_damaged, memory.newest_damaged);
  store();
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
      segments.back().release_uncounted();
    } catch (const Failure& failure) {
      if (failure.status() != CKPT_ERR_CORRUPT) throw;
      removed.emplace_back(failure.what());
      ::unlink(path.c_str());
    }
  }
  return segments;
}

Segment NodeArena::create_segment(const SegmentSpec& spec, unsigned threads) {
  return Segment::create(directory_ + "/" + std::to_string(next_segment_.fetch_add(1)) + ".segment", spec, threads);
}

void NodeArena::remove_segment(Segment segment) { unlink_same(segment.path(), segment.fd()); }

bool lock_alone(int fd, const std::string& directory, std::int64_t wait_limit_ms) {
  const Deadline deadline = Deadline::in_ms(wait_limit_ms);
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) throw_errno(CKPT_ERR_SYSTEM, "cannot lock the arena " + directory);
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::optional<ArenaSummary> inspect_arena(const std::string& directory) {
  const UniqueFd fd(::open((directory + "/node").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat file {};
  if (!fd || ::fstat(fd.get(), &file) != 0 || file.st_size < static_cast<off_t>(page_bytes)) return std::nullopt;
  const Mapping mapping(fd.get(), page_bytes, Mapping::Access::read, directory + "/node");
  const auto& header = *reinterpret_cast<const NodeHeader*>(mapping.data());
  if (header.magic != node_magic || !is_known_format(header.format)) return std::nullopt;
  ArenaSummary summary{name_of(header.job), name_of(header.node), {}, false};
  if (header.format == format_before) summary.memory = memory_of_format_3(header);
  for (const NodeWords& copy : header.copies)
    if (const auto state = NodeArena::read(header, copy)) summary.memory = state->memory;
  summary.in_use = ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0;
  return summary;
}

bool is_arena(const std::string& directory) {
  const UniqueFd fd(::open((directory + "/node").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  std::uint64_t magic = 0;
  return fd && ::pread(fd.get(), &magic, sizeof magic, 0) == sizeof magic && (magic == node_magic || magic == 0);
}

}  // namespace ckpt::arena
