// What a directory adds to the promises of a Store: other processes, crashes, damage, permissions.
#include "coord/directory_store.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>

#include "base/error.hpp"
#include "support.hpp"
#include "temporary_directory.hpp"

namespace ckpt::coord {
namespace {

namespace fs = std::filesystem;
using test::exit_status;
using test::fork_child;
using testing::HasSubstr;

class DirectoryStoreTest : public testing::Test {
 protected:
  std::string file(const std::string& key) const { return directory_.path() + "/" + key; }
  std::string bytes_of(const std::string& key) const {
    std::ifstream in(file(key), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put_bytes(const std::string& key, const std::string& bytes) const {
    std::ofstream(file(key), std::ios::binary | std::ios::trunc) << bytes;
  }
  std::string failure_of(const std::string& key) {
    try {
      store_.get(key);
      return "no failure";
    } catch (const Failure& failure) {
      return failure.what();
    }
  }

  test::TemporaryDirectory directory_;
  DirectoryStore store_{directory_.path()};
};

// Whoever else made it could have chosen the job's token.
TEST_F(DirectoryStoreTest, ADirectoryThatEverybodyCanWriteIntoIsRefused) {
  const std::string open_to_all = directory_.path() + "/open";
  ASSERT_EQ(::mkdir(open_to_all.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(open_to_all.c_str(), 0777), 0);
  for (const std::string& place : {open_to_all, open_to_all + "/job"}) {
    const std::string sentence = test::failure_of([&] { DirectoryStore store(place); });
    EXPECT_THAT(sentence, HasSubstr("can be written by everybody; set the option coordination")) << place;
  }
  ASSERT_EQ(::chmod(open_to_all.c_str(), 01777), 0);  // as /tmp: others cannot replace what is ours there
  DirectoryStore store(open_to_all + "/job");
}

TEST_F(DirectoryStoreTest, ADirectoryOfAnotherUserIsRefused) {
  if (::geteuid() != 0) return;  // only root can make one
  const std::string of_another = directory_.path() + "/another";
  ASSERT_EQ(::mkdir(of_another.c_str(), 0700), 0);
  ASSERT_EQ(::chown(of_another.c_str(), 65534, 65534), 0);
  EXPECT_THAT(test::failure_of([&] { DirectoryStore store(of_another); }), HasSubstr("belongs to another user"));
}

TEST_F(DirectoryStoreTest, AWriterKilledAtAnyMomentLeavesAWholeRecordAndNoLock) {
  const auto value_of = [](std::uint64_t revision) {
    return std::string(50000, static_cast<char>('a' + revision % 26));
  };
  std::uint64_t revision = *store_.put_if("key", value_of(1), 0);
  for (int kill = 0; kill < 20; ++kill) {
    const pid_t child = fork_child([&] {
      DirectoryStore store(directory_.path());
      for (std::uint64_t at = revision;;) at = store.put_if("key", value_of(at + 1), at).value();
    });
    for (const auto begin = revision; revision < begin + 2 + kill % 3;) {
      const auto seen = store_.get("key");
      ASSERT_EQ(seen->value, value_of(seen->revision));
      revision = seen->revision;
    }
    ::kill(child, SIGKILL);
    EXPECT_TRUE(WIFSIGNALED(exit_status(child)));
    const auto left = store_.get("key");
    ASSERT_EQ(left->value, value_of(left->revision));
    revision = store_.put_if("key", value_of(left->revision + 1), left->revision).value();
  }
}

TEST_F(DirectoryStoreTest, WhatAWriterLeftUnfinishedIsNeitherReadNorInTheWay) {
  ASSERT_TRUE(store_.put_if("nodes/a", "old", 0));
  const std::string whole = bytes_of("nodes/a");
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    put_bytes("nodes/.a.new", whole.substr(0, length));
    EXPECT_EQ(store_.get("nodes/a")->value, "old");
    EXPECT_EQ(store_.list("nodes/").size(), 1u);
  }
  EXPECT_TRUE(store_.put_if("nodes/a", "new", 1));
  EXPECT_EQ(store_.get("nodes/a")->value, "new");
}

TEST_F(DirectoryStoreTest, ADamagedRecordIsNamedAndNeverReadWrong) {
  ASSERT_TRUE(store_.put_if("life", "some value", 0));
  const std::string whole = bytes_of("life");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    put_bytes("life", whole.substr(0, length));
    EXPECT_THAT(failure_of("life"), HasSubstr(file("life"))) << length;
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 4);
    put_bytes("life", damaged);
    EXPECT_THAT(failure_of("life"), HasSubstr("damaged")) << i;
  }
  EXPECT_THROW(store_.put_if("life", "other", 1), Failure);
}

TEST_F(DirectoryStoreTest, ALockThatIsNotReleasedIsATimeoutThatNamesIt) {
  const int other = ::open(file(".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::flock(other, LOCK_EX), 0);
  DirectoryStore impatient(directory_.path(), 1);
  try {
    impatient.put_if("key", "value", 0);
    FAIL();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.status(), CKPT_ERR_TIMEOUT);
    EXPECT_THAT(failure.what(), HasSubstr(file(".lock")));
  }
  ::close(other);
  EXPECT_TRUE(impatient.put_if("key", "value", 0));
}

TEST_F(DirectoryStoreTest, NobodyElseCanReadIt) {
  DirectoryStore store(directory_.path() + "/deep/below");
  ASSERT_TRUE(store.put_if("nodes/a", "value", 0));
  const auto mode = [&](const std::string& path) {
    struct stat info {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0);
    return info.st_mode & 0777;
  };
  EXPECT_EQ(mode(directory_.path() + "/deep/below"), 0700u);
  EXPECT_EQ(mode(directory_.path() + "/deep/below/nodes"), 0700u);
  EXPECT_EQ(mode(directory_.path() + "/deep/below/nodes/a"), 0600u);
}

TEST_F(DirectoryStoreTest, ADirectoryThatCannotBeMadeIsNamed) {
  put_bytes("file", "");
  try {
    DirectoryStore store(directory_.path() + "/file/store");
    FAIL();
  } catch (const Failure& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("/file is not a directory"));
  }
}

TEST_F(DirectoryStoreTest, AStoreThatVanishedFailsAndComesBack) {
  DirectoryStore store(directory_.path() + "/gone");
  fs::remove_all(directory_.path() + "/gone");
  EXPECT_EQ(store.get("root"), std::nullopt);
  EXPECT_TRUE(store.list("").empty());
  EXPECT_TRUE(store.put_if("root", "value", 0));
}

}  // namespace
}  // namespace ckpt::coord
