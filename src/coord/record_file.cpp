#include "coord/record_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>

#include "base/error.hpp"
#include "kernels/digest.hpp"

namespace ckpt::coord {
namespace {

constexpr std::string_view tag = "ckptengine record 1 ";
constexpr std::size_t first_line_bytes_max = 128;

std::uint64_t digest_of(std::string_view value, std::uint64_t revision) {
  const std::string both = std::string(value) + std::to_string(revision);
  return kernels::leaf_digest(both.data(), both.size());
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

// Reads into a small buffer, because most records are short and are read again and again.
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

bool is_regular(int fd) {
  struct stat file {};
  return ::fstat(fd, &file) == 0 && S_ISREG(file.st_mode);
}

}  // namespace

std::string encode_record(const std::string& value, std::uint64_t revision) {
  std::array<char, first_line_bytes_max> line{};
  const int length = std::snprintf(line.data(), line.size(), "%s%llu %zu %016llx\n", tag.data(),
                                   static_cast<unsigned long long>(revision), value.size(),
                                   static_cast<unsigned long long>(digest_of(value, revision)));
  return std::string(line.data(), static_cast<std::size_t>(length)) + value;
}

std::optional<Entry> read_record(int at, const std::string& name, const std::string& key, const std::string& path) {
  constexpr const char* remedy =
      "; stop the job's agents (ckptctl stop), and remove its records (ckptctl gc --records)";
  const UniqueFd file(::openat(at, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  // Somebody has removed the file since the directory was listed. Network file systems then report ESTALE.
  if (!file && (errno == ENOENT || errno == ESTALE)) return std::nullopt;
  if (!file && errno != ELOOP && errno != ENXIO)
    throw_errno(CKPT_ERR_SYSTEM, "cannot open the coordination record " + path);
  if (!file || !is_regular(file.get()))
    throw Failure(CKPT_ERR_CORRUPT, "the coordination record " + path + " is not a regular file" + remedy);
  if (auto entry = decode(key, read_all(file.get(), path))) return entry;
  throw Failure(CKPT_ERR_CORRUPT, "the coordination record " + path + " is damaged" + remedy);
}

UniqueFd write_record(int at, const std::string& name, const std::string& text, const std::string& path) {
  UniqueFd file(::openat(at, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) throw_errno(CKPT_ERR_SYSTEM, "cannot create the coordination record " + path);
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t put = ::write(file.get(), text.data() + written, text.size() - written);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_errno(CKPT_ERR_SYSTEM, "cannot write the coordination record " + path);
    written += static_cast<std::size_t>(put);
  }
  if (::fsync(file.get()) != 0)
    throw_errno(CKPT_ERR_SYSTEM, "cannot write the coordination record " + path + " to its disk");
  return file;
}

}  // namespace ckpt::coord
