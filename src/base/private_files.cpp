#include "base/private_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/unique_fd.hpp"

namespace ckpt {
namespace {

constexpr int links_max = 40;  // most symbolic links on the way to a directory; the kernel has the same limit

bool is_ours(const struct stat& info) { return info.st_uid == ::geteuid() || info.st_uid == 0; }

void require(bool holds, const std::string& path, const char* what, const char* option) {
  if (!holds)
    throw Failure(CKPT_ERR_INVALID,
                  path + what + "; set the option " + option + " to a directory that belongs to this user");
}

void require_own(const struct stat& info, const std::string& path, const char* option) {
  require(S_ISDIR(info.st_mode), path, " is not a directory", option);
  require(is_ours(info), path, " belongs to another user", option);
  require((info.st_mode & S_IWOTH) == 0 || (info.st_mode & S_ISVTX) != 0, path, " is writable for everybody", option);
}

// Walks along a path, from one opened directory to the next.
class Walk {
 public:
  Walk(const std::string& path, const char* option, std::size_t parents) : option_(option) {
    push(path);
    for (std::size_t i = 0; i < std::min(parents + 1, ahead_.size()); ++i) ahead_[i].is_checked = true;
    start(path);
  }

  void make_all() {
    while (!ahead_.empty()) {
      const PathComponent part = std::move(ahead_.back());
      ahead_.pop_back();
      go(part);
    }
  }

 private:
  struct PathComponent {
    std::string name;
    bool is_checked = false;  // the directory must belong to us
  };

  // Adds the components of `path` to those that are still ahead. They come next.
  void push(const std::string& path) {
    std::vector<PathComponent> parts;
    for (std::size_t begin = 0; begin < path.size();) {
      const std::size_t end = std::min(path.find('/', begin), path.size());
      if (end > begin && path.compare(begin, end - begin, ".") != 0) parts.push_back({path.substr(begin, end - begin)});
      begin = end + 1;
    }
    ahead_.insert(ahead_.end(), parts.rbegin(), parts.rend());
  }

  void start(const std::string& path) {
    const bool is_absolute = path.starts_with('/');
    if (here_ && !is_absolute) return;
    so_far_ = is_absolute ? "/" : "";
    here_.reset(::open(is_absolute ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!here_) fail(path);
  }

  void go(const PathComponent& part) {
    constexpr int flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
    const std::string path = so_far_ + part.name;
    UniqueFd next(::openat(here_.get(), part.name.c_str(), flags | O_DIRECTORY));
    if (!next && errno == ENOENT) {
      require(link_of_another_.empty(), link_of_another_, " is a link that belongs to another user", option_);
      if (::mkdirat(here_.get(), part.name.c_str(), 0700) != 0 && errno != EEXIST) fail(path);
      next.reset(::openat(here_.get(), part.name.c_str(), flags | O_DIRECTORY));
    }
    if (!next && (errno == ENOTDIR || errno == ELOOP)) {
      const UniqueFd link(::openat(here_.get(), part.name.c_str(), flags));
      if (!link) fail(path);
      return follow(link, path, part.is_checked);
    }
    if (!next) fail(path);
    if (part.is_checked) require_own(look_at(next, path), path, option_);
    here_ = std::move(next);
    so_far_ = path + "/";
  }

  // Continues with the target of `link`.
  void follow(const UniqueFd& link, const std::string& path, bool is_checked) {
    const struct stat info = look_at(link, path);
    require(S_ISLNK(info.st_mode), path, " is not a directory", option_);
    require(is_ours(info) || !is_checked, path, " belongs to another user", option_);
    if (!is_ours(info)) link_of_another_ = path;
    std::array<char, 4096> text;
    const ssize_t size = ::readlinkat(link.get(), "", text.data(), text.size());
    if (size <= 0 || size == static_cast<ssize_t>(text.size()) || ++links_ > links_max) {
      errno = ELOOP;
      fail(path);
    }
    const std::string target(text.data(), static_cast<std::size_t>(size));
    const std::size_t before = ahead_.size();
    push(target);
    if (ahead_.size() > before) ahead_[before].is_checked = is_checked;
    start(target);
  }

  static struct stat look_at(const UniqueFd& file, const std::string& path) {
    struct stat info {};
    if (::fstat(file.get(), &info) != 0) throw_errno(CKPT_ERR_SYSTEM, "cannot find out who owns " + path);
    return info;
  }

  [[noreturn]] void fail(const std::string& path) const {
    throw_errno(CKPT_ERR_SYSTEM, "cannot make the directory " + path + " (option " + option_ + ")");
  }

  const char* const option_;
  std::vector<PathComponent> ahead_;  // in reverse order: the next component is the last element
  UniqueFd here_;                     // the directory that the walk has reached
  std::string so_far_;                // path of `here_`, ending in a slash
  std::string link_of_another_;       // a link of another user that the walk has followed; "": none
  int links_ = 0;
};

}  // namespace

void make_own_directory(const std::string& path, const char* option, std::size_t parents) {
  Walk(path, option, parents).make_all();
}

std::string read_secret_file(const std::string& path, const std::string& option) {
  constexpr std::size_t secret_bytes_max = 4096;
  const auto refuse = [&](const std::string& why) {
    throw Failure(CKPT_ERR_INVALID, "the file " + path + ", which the option " + option + " names, " + why);
  };
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0)
    refuse(std::string("cannot be read: ") + std::strerror(errno) + "; name a file that this user can read");
  if (!S_ISREG(info.st_mode)) refuse("is not a regular file; name a file that holds the secret");
  if (info.st_uid != ::geteuid() && info.st_uid != 0) refuse("belongs to another user; give it to this user (chown)");
  if ((info.st_mode & 077) != 0) refuse("is accessible to other users; make it private (chmod 600)");
  std::string text(secret_bytes_max + 1, '\0');
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got < 0) refuse(std::string("cannot be read: ") + std::strerror(errno) + "; name a file that this user can read");
  text.resize(static_cast<std::size_t>(got));
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  if (text.empty() || text.size() > secret_bytes_max)
    refuse(std::string(text.empty() ? "is empty" : "is longer than 4096 bytes") +
           "; it must hold the secret and nothing else");
  return text;
}

}  // namespace ckpt
