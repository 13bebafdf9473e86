// TemporaryDirectory is a directory for one test. The destructor removes it.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace ckpt::test {

// Where arenas belong.
inline constexpr const char* in_memory = "/dev/shm";

class TemporaryDirectory {
 public:
  // In `base`, or where temporary files go.
  explicit TemporaryDirectory(const std::filesystem::path& base = {})
      : path_(((base.empty() ? std::filesystem::temp_directory_path() : base) / "ckpt-test-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) throw std::filesystem::filesystem_error("mkdtemp", path_, {});
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace ckpt::test
