// A directory in tmpfs for one test, removed with all it holds.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace ckpt::testing_support {

class TempDirectory {
 public:
  TempDirectory() {
    std::string name = "/dev/shm/ckpt-test-XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace ckpt::testing_support
