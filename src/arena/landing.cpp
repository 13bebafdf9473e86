#include "arena/landing.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "arena/format.hpp"
#include "base/error.hpp"

namespace ckpt::arena {
namespace {

constexpr std::size_t places_at = page_bytes + path_words_bytes;

std::uint64_t landing_pages(std::uint64_t size_bytes) {
  return (size_bytes + page_bytes - 1) / page_bytes * page_bytes;
}

LandingHeader& landing_header(const Mapping& mapping) { return *reinterpret_cast<LandingHeader*>(mapping.data()); }

// A file that is being made; gone again unless it gets its name.
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

[[noreturn]] void refuse_file() { throw Failure(CKPT_ERR_CORRUPT, "a rank's landing file is malformed"); }

std::string landing_path(const std::string& directory, std::uint32_t rank) {
  return directory + "/rank-" + std::to_string(rank) + ".landing";
}

}  // namespace

Landing::Landing(UniqueFd fd, Mapping mapping, const Group& group)
    : fd_(std::move(fd)), mapping_(std::move(mapping)), incarnation_(group.incarnation), member_(group.member) {
  std::byte* at = mapping_.data() + places_at;
  for (const std::uint64_t capacity_bytes : group.capacities_bytes) {
    places_.emplace_back(at, capacity_bytes);
    at += landing_pages(capacity_bytes);
  }
}

std::uint64_t Landing::file_bytes(std::span<const std::uint64_t> capacities_bytes) {
  std::uint64_t size_bytes = places_at;
  for (const std::uint64_t capacity_bytes : capacities_bytes) size_bytes += landing_pages(capacity_bytes);
  return size_bytes;
}

Landing Landing::create(const std::string& directory, std::uint32_t rank, Group group) {
  const std::vector<std::uint64_t>& capacities_bytes = group.capacities_bytes;
  if (capacities_bytes.size() > landing_places_max)
    throw Failure(CKPT_ERR_INVALID, "a path group has " + std::to_string(capacities_bytes.size()) +
                                        " members; a landing file has at most " + std::to_string(landing_places_max) +
                                        " places");
  if (group.member >= capacities_bytes.size())
    throw Failure(CKPT_ERR_INVALID, "a path group of " + std::to_string(capacities_bytes.size()) +
                                        " members has no member " + std::to_string(group.member));
  const std::string path = landing_path(directory, rank);
  Draft draft(path + ".new");
  UniqueFd fd(::open(draft.path().c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) throw_errno(CKPT_ERR_SYSTEM, "cannot make " + draft.path());
  const std::uint64_t size_bytes = file_bytes(capacities_bytes);
  if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(size_bytes)); error != 0) {
    errno = error;
    throw_errno(CKPT_ERR_NO_SPACE, "cannot reserve " + std::to_string(size_bytes) + " bytes for " + draft.path());
  }
  Mapping mapping(fd.get(), size_bytes, Mapping::Access::write, draft.path());
  LandingHeader& header = landing_header(mapping);
  header.format = format_version;
  header.places = static_cast<std::uint32_t>(capacities_bytes.size());
  std::copy(capacities_bytes.begin(), capacities_bytes.end(), header.capacity_bytes);
  header.incarnation = group.incarnation;
  header.member = group.member;
  header.magic = landing_magic;
  draft.rename(path);
  return Landing(std::move(fd), std::move(mapping), group);
}

Landing Landing::attach(const std::string& directory, std::uint32_t rank) {
  const std::string path = landing_path(directory, rank);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) throw_errno(CKPT_ERR_SYSTEM, "cannot open " + path);
  return attach(std::move(fd));
}

Landing Landing::attach(UniqueFd fd) {
  struct stat file {};
  if (::fstat(fd.get(), &file) != 0) throw_errno(CKPT_ERR_SYSTEM, "cannot look at a landing file");
  if (!S_ISREG(file.st_mode) || file.st_size < static_cast<off_t>(places_at)) refuse_file();
  const auto size_bytes = static_cast<std::uint64_t>(file.st_size);
  Mapping mapping(fd.get(), size_bytes, Mapping::Access::write, "a rank's landing file");
  const LandingHeader& header = landing_header(mapping);
  const std::uint32_t places = header.places;
  if (header.magic != landing_magic || header.format != format_version || places > landing_places_max) refuse_file();
  const Group group{header.incarnation, header.member, {header.capacity_bytes, header.capacity_bytes + places}};
  if (group.member >= places) refuse_file();
  for (const std::uint64_t capacity_bytes : group.capacities_bytes) {
    if (capacity_bytes > size_bytes) refuse_file();  // before they are summed
  }
  if (file_bytes(group.capacities_bytes) != size_bytes) refuse_file();
  return Landing(std::move(fd), std::move(mapping), group);
}

void Landing::remove(const std::string& directory, std::uint32_t rank) {
  ::unlink(landing_path(directory, rank).c_str());
}

PathBoard Landing::board() const { return PathBoard(*reinterpret_cast<PathWords*>(mapping_.data() + page_bytes)); }

void Landing::begin(std::size_t place, Version version) {
  auto& words = landing_header(mapping_).place[place];
  words.version.store(0, std::memory_order_release);
  words.landed_bytes.store(0, std::memory_order_release);
  words.version.store(version.word(), std::memory_order_release);
}

void Landing::landed(std::size_t place, std::uint64_t size_bytes) {
  landing_header(mapping_).place[place].landed_bytes.store(size_bytes, std::memory_order_release);
}

std::uint64_t Landing::landed(std::size_t place, Version version) const {
  const auto& words = landing_header(mapping_).place[place];
  if (words.version.load(std::memory_order_acquire) != version.word()) return 0;
  return std::min<std::uint64_t>(words.landed_bytes.load(std::memory_order_acquire), places_[place].size());
}

}  // namespace ckpt::arena
