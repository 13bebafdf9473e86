#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.hpp"
#include "base/private_files.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr uid_t another_user = 12345;

class OwnDirectory : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }
  std::string refusal(const std::string& name, std::size_t parents = 2) const {
    try {
      make_own_directory(path(name), "an_option", parents);
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  }
  test::TemporaryDirectory directory_;
};

TEST_F(OwnDirectory, IsCreatedWithItsParentsForItsUserAlone) {
  make_own_directory(path("a/b/../b//./c/"), "an_option", 2);
  for (const char* made : {"a", "a/b", "a/b/c"}) {
    struct stat info {};
    ASSERT_EQ(::stat(path(made).c_str(), &info), 0) << made;
    EXPECT_EQ(info.st_mode & 07777, 0700u) << made;
  }
  make_own_directory(path("a/b/c"), "an_option", 2);  // again
}

TEST_F(OwnDirectory, IsCreatedThroughTheUsersOwnLink) {
  fs::create_directory(path("real"));
  fs::create_directory_symlink("real", path("relative"));
  fs::create_directory_symlink(path("real"), path("absolute"));
  make_own_directory(path("relative/a"), "an_option", 1);
  make_own_directory(path("absolute/b"), "an_option", 1);
  EXPECT_TRUE(fs::is_directory(path("real/a")));
  EXPECT_TRUE(fs::is_directory(path("real/b")));
}

TEST_F(OwnDirectory, IsNotCreatedThroughAnotherUsersLink) {
  if (::geteuid() != 0) return;  // only root can make one
  fs::create_directory(path("real"));
  fs::create_directory_symlink(path("real"), path("link"));
  ASSERT_EQ(::lchown(path("link").c_str(), another_user, another_user), 0);
  for (const char* way : {"link/a", "link/a/b", "link/a/b/c", "link/a/b/c/d/e"})
    EXPECT_THAT(refusal(way), HasSubstr("belongs to another user; set the option an_option")) << way;
  EXPECT_TRUE(fs::is_empty(path("real")));
  fs::create_directories(path("real/a/b/c/d"));
  make_own_directory(path("link/a/b/c/d"), "an_option", 2);  // where nothing is to be made
}

TEST_F(OwnDirectory, IsNotCreatedInADirectoryThatFailsItsCheck) {
  fs::create_directory(path("open"));
  fs::permissions(path("open"), fs::perms::all);
  EXPECT_THAT(refusal("open/a/b"), HasSubstr("is writable for everybody; set the option an_option"));
  EXPECT_TRUE(fs::is_empty(path("open")));
  if (::geteuid() != 0) return;
  fs::create_directory(path("another"));
  ASSERT_EQ(::chown(path("another").c_str(), another_user, another_user), 0);
  EXPECT_THAT(refusal("another/a/b"), HasSubstr("another belongs to another user"));
  EXPECT_TRUE(fs::is_empty(path("another")));
}

TEST_F(OwnDirectory, ChecksTheTargetOfTheUsersOwnLink) {
  fs::create_directory(path("open"));
  fs::permissions(path("open"), fs::perms::all);
  fs::create_directory_symlink("open", path("link"));
  EXPECT_THAT(refusal("link/a"), HasSubstr("is writable for everybody; set the option an_option"));
  EXPECT_TRUE(fs::is_empty(path("open")));
}

TEST_F(OwnDirectory, RefusesAnotherUsersLinkOnACheckedPathEvenIfEverythingExists) {
  if (::geteuid() != 0) return;  // only root can make one
  fs::create_directories(path("real/a"));
  fs::create_directory_symlink(path("real"), path("link"));
  ASSERT_EQ(::lchown(path("link").c_str(), another_user, another_user), 0);
  EXPECT_THAT(refusal("link/a"), HasSubstr("link belongs to another user; set the option an_option"));
}

TEST_F(OwnDirectory, NamesFilesAndCircularLinksOnThePath) {
  ASSERT_EQ(::symlink("circle", path("circle").c_str()), 0);
  EXPECT_THAT(refusal("circle/a"), HasSubstr("circle (option an_option): Too many levels of symbolic links"));
  ASSERT_EQ(::mknod(path("file").c_str(), S_IFREG | 0600, 0), 0);
  EXPECT_THAT(refusal("file/a"), HasSubstr("file is not a directory"));
}

}  // namespace
}  // namespace ckpt
