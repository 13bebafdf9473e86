#include "base/own_directory.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include "base/error.hpp"

namespace ckpt {

void require_own_directory(const std::string& path, const char* option) {
  struct stat info {};
  const auto is_ours = [&] { return info.st_uid == ::geteuid() || info.st_uid == 0; };
  const auto require = [&](bool holds, const char* what) {
    if (!holds)
      throw Failure(CKPT_ERR_INVALID, path + what + "; set the option " + option + " to a directory of your own");
  };
  if (::lstat(path.c_str(), &info) != 0) throw_errno(CKPT_ERR_SYSTEM, "cannot look at " + path);
  require(is_ours(), " belongs to another user");
  if (S_ISLNK(info.st_mode) && ::stat(path.c_str(), &info) != 0)
    throw_errno(CKPT_ERR_SYSTEM, "cannot look at what " + path + " leads to");
  require(S_ISDIR(info.st_mode), " is not a directory");
  require(is_ours(), " belongs to another user");
  require((info.st_mode & S_IWOTH) == 0 || (info.st_mode & S_ISVTX) != 0, " can be written by everybody");
}

}  // namespace ckpt
