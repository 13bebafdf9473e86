#include "arena/control.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/same_file.hpp"

namespace ckpt::arena {
namespace {

constexpr unsigned freeze_state_bit = 56;
constexpr unsigned grant_spare_bit = 16;
constexpr unsigned grant_sequence_bit = 24;

std::string control_path(const std::string& directory, std::uint32_t rank) {
  return directory + "/rank-" + std::to_string(rank) + ".control";
}

[[noreturn]] void refuse_page() {
  throw Failure(CKPT_ERR_CORRUPT,
                "a rank's control page has another form than this version expects: another version wrote it, or it is "
                "damaged; run ckptd and libckptengine of one version, and restart the rank");
}

struct stat stat_of(int fd) {
  struct stat file {};
  if (::fstat(fd, &file) != 0) throw_errno(CKPT_ERR_SYSTEM, "cannot read the size of a rank's control page");
  return file;
}

}  // namespace

std::uint64_t Grant::word() const {
  std::uint64_t word = sequence << grant_sequence_bit;
  if (spare) {
    check(*spare < 16, "a grant names a spare slot that no segment has");
    word |= std::uint64_t{*spare + 1u} << grant_spare_bit;
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    check(slots[i] < 16, "a grant names a slot that its four bits cannot hold");
    word |= std::uint64_t{slots[i]} << (4 * i);
  }
  return word;
}

Grant Grant::from_word(std::uint64_t word) {
  Grant grant{word >> grant_sequence_bit, {}};
  const auto spare = static_cast<std::uint8_t>(word >> grant_spare_bit);
  if (spare != 0 && spare <= 16) grant.spare = static_cast<std::uint8_t>(spare - 1);
  for (std::size_t i = 0; i < grant.slots.size(); ++i)
    grant.slots[i] = static_cast<std::uint8_t>(word >> (4 * i) & 0xf);
  return grant;
}

void Control::share(const core::Share& share) {
  words_->share.store(std::uint64_t{share.first} << 32 | std::uint64_t{share.of} << 16 | share.stored,
                      std::memory_order_release);
}

core::Share Control::share() const {
  const std::uint64_t word = words_->share.load(std::memory_order_acquire);
  return {static_cast<std::uint32_t>(word >> 32), static_cast<std::uint32_t>(word >> 16 & 0xffff),
          static_cast<std::uint32_t>(word & 0xffff)};
}

void Control::halt(const HaltWords& halt) {
  words_->halt_at.store(halt.iteration ? static_cast<std::uint64_t>(*halt.iteration + 2) : 0,
                        std::memory_order_release);
  set(words_->halt, halt.number);
}

// The iteration is decided once. Whoever sees the number without it looks again.
std::optional<HaltWords> Control::halt() const {
  const std::uint64_t number = words_->halt.load(std::memory_order_acquire);
  if (number == 0) return std::nullopt;
  const auto at = static_cast<std::int64_t>(words_->halt_at.load(std::memory_order_acquire));
  return HaltWords{number, at == 0 ? std::nullopt : std::optional(at - 2)};
}

void Control::freeze(const FreezeWords& answer) {
  words_->answered.store(answer.halt, std::memory_order_release);
  words_->freeze.store(
      std::uint64_t{answer.state} << freeze_state_bit | static_cast<std::uint64_t>(answer.iteration + 1),
      std::memory_order_release);
}

FreezeWords Control::freeze() const {
  const std::uint64_t word = words_->freeze.load(std::memory_order_acquire);
  const std::uint64_t iteration = word & ((std::uint64_t{1} << freeze_state_bit) - 1);
  return {words_->answered.load(std::memory_order_acquire), static_cast<std::uint8_t>(word >> freeze_state_bit),
          static_cast<std::int64_t>(iteration) - 1};
}

void Control::copied(const CopiedBytes& bytes) {
  words_->bubble_bytes.store(bytes.in_bubbles, std::memory_order_relaxed);
  words_->compute_bytes.store(bytes.beside_computation, std::memory_order_relaxed);
  words_->update_bytes.store(bytes.in_update, std::memory_order_relaxed);
  words_->layered.store(bytes.layered, std::memory_order_relaxed);
  words_->layered_late.store(bytes.layered_late, std::memory_order_relaxed);
}

CopiedBytes Control::copied() const {
  const auto read = [](const Word64& word) { return word.load(std::memory_order_relaxed); };
  return {read(words_->bubble_bytes), read(words_->compute_bytes), read(words_->update_bytes), read(words_->layered),
          read(words_->layered_late)};
}

Control::Control(UniqueFd fd, Mapping mapping)
    : fd_(std::move(fd)),
      mapping_(std::move(mapping)),
      words_(reinterpret_cast<RankControl*>(mapping_.data())),
      comm_(reinterpret_cast<CommWords*>(mapping_.data() + page_bytes)) {}

Control Control::create(const std::string& directory, std::uint32_t rank) {
  const std::string path = control_path(directory, rank), draft = path + ".new";
  ::unlink(draft.c_str());
  UniqueFd fd(::open(draft.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) throw_errno(CKPT_ERR_SYSTEM, "cannot make " + draft);
  if (const int error = ::posix_fallocate(fd.get(), 0, control_file_bytes); error != 0) {
    errno = error;
    throw_errno(CKPT_ERR_NO_SPACE, "cannot reserve " + std::to_string(control_file_bytes) + " bytes for " + draft,
                room_advice);
  }
  Mapping mapping(fd.get(), control_file_bytes, Mapping::Access::write, draft);
  Control control(std::move(fd), std::move(mapping));
  control.words_->format = control_format_version;
  control.words_->rank = rank;
  control.words_->attempted.store(-1, std::memory_order_relaxed);
  control.words_->magic = control_magic;
  if (::rename(draft.c_str(), path.c_str()) != 0) throw_errno(CKPT_ERR_SYSTEM, "cannot make " + path);
  return control;
}

Control Control::attach(UniqueFd fd, std::uint32_t rank) {
  const struct stat file = stat_of(fd.get());
  if (!S_ISREG(file.st_mode) || file.st_size != static_cast<off_t>(control_file_bytes) || file.st_blocks == 0)
    refuse_page();
  Mapping mapping(fd.get(), control_file_bytes, Mapping::Access::write, "a rank's control page");
  const auto* words = reinterpret_cast<const RankControl*>(mapping.data());
  if (words->magic != control_magic || words->format != control_format_version || words->rank != rank) refuse_page();
  return Control(std::move(fd), std::move(mapping));
}

Control Control::attach(const std::string& directory, std::uint32_t rank) {
  const std::string path = control_path(directory, rank);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd && errno == ENOENT)
    throw Failure(CKPT_ERR_CORRUPT, "the rank's control page " + path + " is missing; restart the rank");
  if (!fd) throw_errno(CKPT_ERR_SYSTEM, "cannot open " + path);
  return attach(std::move(fd), rank);
}

bool Control::same_as(const Control& other) const { return is_same_file(fd_.get(), other.fd_.get()); }

void Control::resume_at(std::int64_t iteration) {
  words_->resume_at.store(iteration, std::memory_order_release);
  ring(words_->agent_doorbell, FutexScope::shared);
}

}  // namespace ckpt::arena
