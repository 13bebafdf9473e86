#include "arena/segment.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace ckpt::arena {
namespace {

// The largest capacity. Sums of capacities within it are far from an overflow.
constexpr std::uint64_t capacity_max_bytes = std::uint64_t{1} << 53;

std::uint64_t whole_pages(std::uint64_t bytes) { return (bytes + page_bytes - 1) / page_bytes * page_bytes; }

// Size of the whole file, including the slots that have no memory yet.
std::uint64_t file_bytes(const SegmentSpec& spec) { return page_bytes + spec.slots_max * slot_bytes(spec); }

[[noreturn]] void not_a_segment(const std::string& path, const char* reason) {
  throw Failure(CKPT_ERR_CORRUPT, "the segment " + path + " cannot be used: " + reason);
}

// Reserves memory for a range of the file. Otherwise a full file system would cause SIGBUS in the middle of a capture.
void reserve(int fd, std::uint64_t first_byte, std::uint64_t size_bytes, const std::string& path) {
  int error = 0;
  do error = ::posix_fallocate(fd, static_cast<off_t>(first_byte), static_cast<off_t>(size_bytes));
  while (error == EINTR);
  if (error == 0) return;
  errno = error;
  throw_errno(error == ENOSPC || error == ENOMEM || error == EFBIG ? CKPT_ERR_NO_SPACE : CKPT_ERR_SYSTEM,
              "cannot reserve " + size_text(size_bytes) + " for " + path, room_advice);
}

SegmentSpec checked_spec(const SegmentHeader& header, const struct stat& file, const std::string& path) {
  if (header.magic != segment_magic) not_a_segment(path, "it does not begin like a segment");
  const bool is_format_4 = header.format == 4;
  if (header.format < 4 || header.format > segment_format_version)
    not_a_segment(path, "it has another version's format");
  if (header.ready.load(std::memory_order_acquire) != 1)
    not_a_segment(path, "the agent that made it did not finish it");
  SegmentSpec spec;
  spec.kind = header.kind;
  spec.rank = header.rank;
  spec.slots_max = header.slots_max;
  const std::uint64_t reserved = is_format_4 ? spec.slots_max : header.slots_reserved.load(std::memory_order_acquire);
  spec.slots = static_cast<std::uint32_t>(std::min<std::uint64_t>(reserved, segment_slots_max + 1));
  spec.data_capacity_bytes = header.data_capacity_bytes;
  spec.manifest_capacity_bytes = header.manifest_capacity_bytes;
  const auto* end = static_cast<const char*>(std::memchr(header.shard, '\0', name_bytes_max));
  if (end != nullptr) spec.shard.assign(header.shard, end);
  if (!is_plain_name(spec.shard)) not_a_segment(path, "its shard has no valid name");
  if ((spec.kind != SegmentKind::local && spec.kind != SegmentKind::held) || spec.slots == 0 ||
      spec.slots > spec.slots_max || spec.slots_max > segment_slots_max)
    not_a_segment(path, "its kind or its number of slots is invalid");
  if (spec.data_capacity_bytes > capacity_max_bytes || spec.manifest_capacity_bytes > capacity_max_bytes ||
      spec.data_capacity_bytes % page_bytes != 0 || spec.manifest_capacity_bytes % page_bytes != 0 ||
      file_bytes(spec) != static_cast<std::uint64_t>(file.st_size))
    not_a_segment(path, "the capacities in its header do not fit the size of the file");
  if (static_cast<std::uint64_t>(file.st_blocks) * 512 < segment_bytes(spec))
    not_a_segment(path, "not all memory of its slots is reserved");
  return spec;
}

}  // namespace

std::uint64_t segment_bytes(const SegmentSpec& spec) { return page_bytes + spec.slots * slot_bytes(spec); }

std::uint64_t slot_bytes(const SegmentSpec& spec) {
  return page_bytes + whole_pages(spec.manifest_capacity_bytes) + whole_pages(spec.data_capacity_bytes);
}

Segment::Segment(std::string path, UniqueFd fd, Mapping mapping, SegmentSpec spec)
    : path_(std::move(path)),
      fd_(std::move(fd)),
      mapping_(std::move(mapping)),
      shape_(new Shape{std::move(spec), {0}}) {
  shape_->slots = shape_->spec.slots;
  check(mapping_.size_bytes() == file_bytes(shape_->spec), "a segment is not as large as its slots");
}

SlotHeader* Segment::slot_header(std::uint32_t index) const {
  return reinterpret_cast<SlotHeader*>(slot_memory(index).data());
}

std::span<std::byte> Segment::slot_memory(std::uint32_t index) const {
  check(index < slots(), "a slot is used that lies beyond the end of its segment");
  const std::uint64_t size_bytes = slot_bytes(spec());
  return {mapping_.data() + page_bytes + index * size_bytes, size_bytes};
}

bool Segment::notice_growth() {
  const std::uint64_t reserved = header()->slots_reserved.load(std::memory_order_acquire);
  const auto slots_now = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(reserved, slots(), spec().slots_max));
  return shape_->slots.exchange(slots_now, std::memory_order_acq_rel) != slots_now;
}

void Segment::grow(std::uint32_t slots_wanted, unsigned threads) {
  check(slots_wanted <= spec().slots_max, "a segment is to have more slots than its file has room for");
  const std::uint64_t begin = size_bytes(), end = page_bytes + slots_wanted * slot_bytes(spec());
  if (end <= begin) return;
  try {
    reserve(fd_.get(), begin, end - begin, path_);
  } catch (...) {
    release_uncounted();
    throw;
  }
  mapping_.populate(begin, end - begin, threads);
  header()->slots_reserved.store(slots_wanted, std::memory_order_release);
  shape_->slots.store(slots_wanted, std::memory_order_release);
}

void Segment::release_uncounted() {
  const std::uint64_t begin = size_bytes(), end = file_bytes(spec());
  if (begin == end) return;
  if (::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                  static_cast<off_t>(end - begin)) != 0)
    throw_errno(CKPT_ERR_SYSTEM, "cannot give back memory of " + path_);
}

void Segment::populate(unsigned threads) const { mapping_.populate(0, size_bytes(), threads); }

bool Segment::is_whole_file() const {
  struct stat file {};
  return ::fstat(fd_.get(), &file) != 0 || static_cast<std::uint64_t>(file.st_size) >= file_bytes(spec());
}

Segment Segment::create(const std::string& path, const SegmentSpec& asked, unsigned threads) {
  if (!is_plain_name(asked.shard) || asked.slots == 0 || std::max(asked.slots, asked.slots_max) > segment_slots_max ||
      asked.data_capacity_bytes > capacity_max_bytes || asked.manifest_capacity_bytes > capacity_max_bytes)
    throw Failure(CKPT_ERR_INTERNAL, "the new segment " + path +
                                         " would have an impossible name, size or number of slots: this is a bug in "
                                         "ckptengine; report it with the agent's log");
  SegmentSpec spec = asked;
  spec.slots_max = std::max(asked.slots, asked.slots_max);
  spec.data_capacity_bytes = whole_pages(asked.data_capacity_bytes);
  spec.manifest_capacity_bytes = whole_pages(asked.manifest_capacity_bytes);

  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) throw_errno(CKPT_ERR_SYSTEM, "cannot make " + path);
  try {
    reserve(fd.get(), 0, segment_bytes(spec), path);
    if (::ftruncate(fd.get(), static_cast<off_t>(file_bytes(spec))) != 0)
      throw_errno(CKPT_ERR_SYSTEM, "cannot set the size of " + path);
    Mapping mapping(fd.get(), file_bytes(spec), Access::write, path);
    mapping.populate(0, segment_bytes(spec), threads);
    auto* header = reinterpret_cast<SegmentHeader*>(mapping.data());
    header->format = segment_format_version;
    header->kind = spec.kind;
    header->rank = spec.rank;
    header->slots_max = spec.slots_max;
    header->slots_reserved.store(spec.slots, std::memory_order_relaxed);
    header->data_capacity_bytes = spec.data_capacity_bytes;
    header->manifest_capacity_bytes = spec.manifest_capacity_bytes;
    std::memcpy(header->shard, spec.shard.c_str(), spec.shard.size() + 1);
    header->magic = segment_magic;
    header->ready.store(1, std::memory_order_release);
    return Segment(path, std::move(fd), std::move(mapping), std::move(spec));
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

Segment Segment::attach(UniqueFd fd, Access access, const std::string& path) {
  struct stat file {};
  if (::fstat(fd.get(), &file) != 0) throw_errno(CKPT_ERR_SYSTEM, "cannot read the size of " + path);
  if (!S_ISREG(file.st_mode) || file.st_size < static_cast<off_t>(page_bytes)) not_a_segment(path, "it is too short");
  SegmentSpec spec;
  {
    const Mapping head(fd.get(), page_bytes, Access::read, path);
    spec = checked_spec(*reinterpret_cast<const SegmentHeader*>(head.data()), file, path);
  }
  Mapping mapping(fd.get(), file_bytes(spec), access, path);
  return Segment(path, std::move(fd), std::move(mapping), std::move(spec));
}

Segment Segment::attach(const std::string& path, Access access) {
  UniqueFd fd(::open(path.c_str(), (access == Access::write ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) throw_errno(CKPT_ERR_SYSTEM, "cannot open " + path);
  return attach(std::move(fd), access, path);
}

}  // namespace ckpt::arena
