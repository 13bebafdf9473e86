#include "gpu_replication/receive_buffer.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "arena/arena_format.hpp"
#include "base/error.hpp"
#include "placement/parity_layout.hpp"

namespace ckpt::arena {
namespace {

constexpr std::size_t places_at = page_bytes + replication_words_bytes;

std::uint64_t receive_buffer_pages(std::uint64_t size_bytes) {
  return (size_bytes + page_bytes - 1) / page_bytes * page_bytes;
}

ReceiveBufferHeader& receive_buffer_header(const Mapping& mapping) {
  return *reinterpret_cast<ReceiveBufferHeader*>(mapping.data());
}

std::string receive_buffer_path(const std::string& directory, std::uint32_t rank) {
  return directory + "/rank-" + std::to_string(rank) + ".receive_buffer";
}

// A file under construction. It disappears unless it gets its name.
class Draft {
 public:
  explicit Draft(std::string path) : path_(std::move(path)) { ::unlink(path_.c_str()); }
  ~Draft() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  const std::string& path() const { return path_; }
  void rename(const std::string& path) {
    if (::rename(path_.c_str(), path.c_str()) != 0) throw_errno(CKPT_ERR_SYSTEM, "cannot make " + path);
    path_.clear();
  }

 private:
  std::string path_;
};

void reserve_pages(int fd, std::uint64_t from_byte, std::uint64_t size_bytes) {
  if (size_bytes == 0) return;
  int error = 0;
  do error = ::posix_fallocate(fd, static_cast<off_t>(from_byte), static_cast<off_t>(size_bytes));
  while (error == EINTR);
  if (error == 0) return;
  errno = error;
  throw_errno(CKPT_ERR_NO_SPACE,
              "cannot reserve " + std::to_string(size_bytes) + " bytes for a rank's receive buffer file", room_advice);
}

[[noreturn]] void refuse_file() {
  throw Failure(CKPT_ERR_CORRUPT, "a rank's receive buffer file is damaged; the next incarnation makes a new one");
}

bool is_possible(const ReceiveBuffer::Group& group) {
  return group.members <= receive_buffer_places_max && group.member < group.members &&
         (group.rows == 0 || (group.rows <= placement::max_parity_rows && group.rows < group.members));
}

std::uint64_t bytes_of(int fd) {
  struct stat file {};
  if (::fstat(fd, &file) != 0) throw_errno(CKPT_ERR_SYSTEM, "cannot read the size of a rank's receive buffer file");
  if (!S_ISREG(file.st_mode) || file.st_size < static_cast<off_t>(places_at)) refuse_file();
  return static_cast<std::uint64_t>(file.st_size);
}

}  // namespace

ReceiveBuffer::ReceiveBuffer(UniqueFd fd, Mapping words, const Group& group)
    : fd_(std::move(fd)), words_(std::move(words)), group_(group), places_(group.members) {}

std::uint64_t ReceiveBuffer::file_bytes(std::span<const std::uint64_t> capacities_bytes) {
  std::uint64_t size_bytes = places_at;
  for (const std::uint64_t capacity_bytes : capacities_bytes) size_bytes += receive_buffer_pages(capacity_bytes);
  return size_bytes;
}

ReceiveBuffer ReceiveBuffer::create(const std::string& directory, std::uint32_t rank, const Group& group) {
  if (!is_possible(group))
    throw Failure(CKPT_ERR_INVALID,
                  "a replication group cannot have member " + std::to_string(group.member) + " of " +
                      std::to_string(group.members) + " with " + std::to_string(group.rows) +
                      " rows of parity; it has at most " + std::to_string(receive_buffer_places_max) +
                      " members, numbered from 0: this is a bug in ckptengine; report it with the agent's log");
  Draft draft(receive_buffer_path(directory, rank) + ".new");
  UniqueFd fd(::open(draft.path().c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) throw_errno(CKPT_ERR_SYSTEM, "cannot make " + draft.path());
  reserve_pages(fd.get(), 0, places_at);
  Mapping words(fd.get(), places_at, Mapping::Access::write, draft.path());
  ReceiveBufferHeader& header = receive_buffer_header(words);
  header.format = format_version;
  header.places = group.members;
  header.incarnation = group.incarnation;
  header.member = group.member;
  header.rows = group.rows;
  header.magic = receive_buffer_magic;
  draft.rename(receive_buffer_path(directory, rank));
  return ReceiveBuffer(std::move(fd), std::move(words), group);
}

ReceiveBuffer ReceiveBuffer::attach(const std::string& directory, std::uint32_t rank) {
  const std::string path = receive_buffer_path(directory, rank);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) throw_errno(CKPT_ERR_SYSTEM, "cannot open " + path);
  return attach(std::move(fd));
}

ReceiveBuffer ReceiveBuffer::attach(UniqueFd fd) {
  bytes_of(fd.get());
  Mapping words(fd.get(), places_at, Mapping::Access::write, "a rank's receive buffer file");
  const ReceiveBufferHeader& header = receive_buffer_header(words);
  const Group group{header.incarnation, header.member, header.places, header.rows};
  if (header.magic != receive_buffer_magic || header.format != format_version) refuse_file();
  if (!is_possible(group)) refuse_file();
  return ReceiveBuffer(std::move(fd), std::move(words), group);
}

void ReceiveBuffer::remove(const std::string& directory, std::uint32_t rank) {
  ::unlink(receive_buffer_path(directory, rank).c_str());
}

void ReceiveBuffer::make_places(const std::vector<std::uint64_t>& capacities_bytes) {
  if (capacities_bytes.size() != group_.members)
    throw Failure(CKPT_ERR_INVALID, "a receive buffer for " + std::to_string(group_.members) + " members was given " +
                                        std::to_string(capacities_bytes.size()) +
                                        " sizes: this is a bug in ckptengine; report it with the agent's log");
  try {
    reserve_pages(fd_.get(), places_at, file_bytes(capacities_bytes) - places_at);
  } catch (const Failure&) {
    [[maybe_unused]] const int shrunk = ::ftruncate(fd_.get(), places_at);
    throw;
  }
  ReceiveBufferHeader& header = receive_buffer_header(words_);
  std::copy(capacities_bytes.begin(), capacities_bytes.end(), header.capacity_bytes);
  map_places(capacities_bytes);
  header.ready.store(1, std::memory_order_release);
}

bool ReceiveBuffer::find_places() {
  if (room_.size_bytes() != 0) return true;
  const ReceiveBufferHeader& header = receive_buffer_header(words_);
  if (header.ready.load(std::memory_order_acquire) == 0) return false;
  const std::vector<std::uint64_t> capacities_bytes(header.capacity_bytes, header.capacity_bytes + group_.members);
  const std::uint64_t size_bytes = bytes_of(fd_.get());
  for (const std::uint64_t capacity_bytes : capacities_bytes) {
    if (capacity_bytes > size_bytes) refuse_file();  // checked before the sum, which could overflow
  }
  if (file_bytes(capacities_bytes) > size_bytes) refuse_file();
  map_places(capacities_bytes);
  return true;
}

// Maps the whole file again, because a mapping begins at the start of the file.
void ReceiveBuffer::map_places(std::span<const std::uint64_t> capacities_bytes) {
  room_ = Mapping(fd_.get(), file_bytes(capacities_bytes), Mapping::Access::write, "a rank's receive buffer file");
  std::byte* at = room_.data() + places_at;
  for (std::size_t place = 0; place < places_.size(); ++place) {
    places_[place] = {at, capacities_bytes[place]};
    at += receive_buffer_pages(capacities_bytes[place]);
  }
}

ReplicationPage ReceiveBuffer::page() const {
  return ReplicationPage(*reinterpret_cast<ReplicationWords*>(words_.data() + page_bytes));
}

void ReceiveBuffer::begin(std::size_t place, CheckpointId checkpoint) {
  auto& words = receive_buffer_header(words_).place[place];
  words.checkpoint.store(0, std::memory_order_release);
  words.gpu_received_bytes.store(0, std::memory_order_release);
  words.checkpoint.store(checkpoint.word(), std::memory_order_release);
}

void ReceiveBuffer::received(std::size_t place, std::uint64_t size_bytes) {
  receive_buffer_header(words_).place[place].gpu_received_bytes.store(size_bytes, std::memory_order_release);
}

std::uint64_t ReceiveBuffer::received(std::size_t place, CheckpointId checkpoint) const {
  const auto& words = receive_buffer_header(words_).place[place];
  if (words.checkpoint.load(std::memory_order_acquire) != checkpoint.word()) return 0;
  return std::min<std::uint64_t>(words.gpu_received_bytes.load(std::memory_order_acquire), places_[place].size());
}

}  // namespace ckpt::arena
