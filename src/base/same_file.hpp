// Tells whether two descriptors, or a descriptor and a path, refer to the same file.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace ckpt {

inline bool is_same_file(const struct stat& file, const struct stat& other) {
  return file.st_dev == other.st_dev && file.st_ino == other.st_ino;
}

inline bool is_same_file(int fd, int other_fd) {
  struct stat file {
  }, other{};
  return ::fstat(fd, &file) == 0 && ::fstat(other_fd, &other) == 0 && is_same_file(file, other);
}

// Does not follow a link: for a link, compares the link itself. Also false if no file has that path.
inline bool is_same_file(const std::string& path, int fd) {
  struct stat named {
  }, file{};
  return ::lstat(path.c_str(), &named) == 0 && ::fstat(fd, &file) == 0 && is_same_file(named, file);
}

// Removes the name `path` if it still refers to the open file `fd`. Otherwise somebody has put another file in its
// place, and the name stays.
inline void unlink_same(const std::string& path, int fd) {
  if (is_same_file(path, fd)) ::unlink(path.c_str());
}

}  // namespace ckpt
