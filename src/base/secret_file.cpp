#include "base/secret_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.hpp"
#include "base/unique_fd.hpp"

namespace ckpt {

std::string read_secret_file(const std::string& path, const std::string& option) {
  constexpr std::size_t secret_bytes_max = 4096;
  const auto refuse = [&](const std::string& why) {
    throw Failure(CKPT_ERR_INVALID, "the file " + path + ", which the option " + option + " names, " + why);
  };
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0) refuse(std::string("cannot be read: ") + std::strerror(errno));
  if (!S_ISREG(info.st_mode)) refuse("is no file; name one that holds the secret");
  if ((info.st_mode & 077) != 0 || (info.st_uid != ::geteuid() && info.st_uid != 0))
    refuse("can be read or written by others; make it this user's own (chown) and private (chmod 600)");
  std::string text(secret_bytes_max + 1, '\0');
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got < 0) refuse(std::string("cannot be read: ") + std::strerror(errno));
  text.resize(static_cast<std::size_t>(got));
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  if (text.empty() || text.size() > secret_bytes_max) refuse("is empty or too long; put the secret alone into it");
  return text;
}

}  // namespace ckpt
