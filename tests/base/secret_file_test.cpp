#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/error.hpp"
#include "base/private_files.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt {
namespace {

using testing::HasSubstr;

class SecretFile : public testing::Test {
 protected:
  std::string write(const std::string& text, mode_t mode) const {
    std::string path = directory_.path() + "/secret";
    std::filesystem::remove(path);
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }
  static std::string refusal(const std::string& path) {
    try {
      return "read: " + read_secret_file(path, "some_file");
    } catch (const Failure& failure) {
      return failure.what();
    }
  }

  const test::TemporaryDirectory directory_;
};

TEST_F(SecretFile, StripsTheLineEnd) {
  EXPECT_EQ(read_secret_file(write("secret\n", 0600), "x"), "secret");
  EXPECT_EQ(read_secret_file(write(" with blanks ", 0400), "x"), " with blanks ");
}

TEST_F(SecretFile, RefusesAFileThatOthersCanReadOrWrite) {
  for (const mode_t mode : {0640u, 0604u, 0620u, 0602u, 0610u, 0644u})
    EXPECT_THAT(refusal(write("secret", mode)), testing::AllOf(HasSubstr("some_file"), HasSubstr("chmod 600"))) << mode;
}

TEST_F(SecretFile, NamesAFileWithoutASecret) {
  EXPECT_THAT(refusal(write("\n", 0600)), HasSubstr("is empty"));
  EXPECT_THAT(refusal(write(std::string(5000, 'x'), 0600)), HasSubstr("longer than 4096 bytes"));
  EXPECT_THAT(refusal(directory_.path()), HasSubstr("is not a regular file"));
  EXPECT_THAT(refusal(directory_.path() + "/none"), HasSubstr("/none"));
}

}  // namespace
}  // namespace ckpt
