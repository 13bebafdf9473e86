// What is said of mounts on which compare-and-swap does not work.
#include "coord/mount_check.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "tests/support/temporary_directory.hpp"

namespace ckpt::coord {
namespace {

using testing::HasSubstr;

class MountCheck : public testing::Test {
 protected:
  ~MountCheck() override { EXPECT_TRUE(std::filesystem::is_empty(directory_.path())) << "it cleans up"; }
  const test::TemporaryDirectory directory_{"/dev/shm"};
};

TEST_F(MountCheck, AcceptsALocalDirectory) { EXPECT_EQ(what_fails_in(directory_.path()), ""); }

TEST_F(MountCheck, NamesAMountWithoutHardLinks) {
  RevisionHooks hooks;
  hooks.link = [](int, const char*, const char*) {
    errno = EOPNOTSUPP;
    return -1;
  };
  EXPECT_THAT(what_fails_in(directory_.path(), hooks), HasSubstr("has no hard links"));
}

// As if the name were made in each client's cache.
TEST_F(MountCheck, NamesAMountThatLetsTwoWritersCreateTheSameName) {
  RevisionHooks hooks;
  hooks.link = [](int at, const char* from, const char* to) { return ::renameat(at, from, at, to); };
  EXPECT_THAT(what_fails_in(directory_.path(), hooks), HasSubstr("two test writers both wrote revision"));
}

TEST_F(MountCheck, NamesAMountThatDoesNotShowWrittenFiles) {
  RevisionHooks hooks;
  hooks.link = [](int, const char*, const char*) {
    errno = EEXIST;
    return -1;
  };
  EXPECT_THAT(what_fails_in(directory_.path(), hooks), HasSubstr("did not see what another one wrote"));
}

TEST_F(MountCheck, NamesADirectoryThatCannotBeWritten) {
  EXPECT_THAT(what_fails_in(directory_.path() + "/none"), HasSubstr("cannot make a directory in"));
}

}  // namespace
}  // namespace ckpt::coord
