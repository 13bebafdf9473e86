// Whether two descriptors are of one file, whoever opened them and under which name.
#pragma once

#include <sys/stat.h>

namespace ckpt {

inline bool is_same_file(int fd, int other_fd) {
  struct stat file {
  }, other{};
  return ::fstat(fd, &file) == 0 && ::fstat(other_fd, &other) == 0 && file.st_dev == other.st_dev &&
         file.st_ino == other.st_ino;
}

}  // namespace ckpt
