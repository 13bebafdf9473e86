// What a directory adds to the promises of a Store: other processes, crashes, damage, permissions.
#include "coord/directory_store.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>

#include "base/error.hpp"
#include "support.hpp"
#include "tests/support/temporary_directory.hpp"

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
TEST_F(DirectoryStoreTest, RefusesADirectoryThatEveryoneCanWriteTo) {
  const std::string open_to_all = directory_.path() + "/open";
  ASSERT_EQ(::mkdir(open_to_all.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(open_to_all.c_str(), 0777), 0);
  for (const std::string& place : {open_to_all, open_to_all + "/job"}) {
    const std::string sentence = test::failure_of([&] { DirectoryStore store(place); });
    EXPECT_THAT(sentence, HasSubstr("is writable for everybody; set the option coordination")) << place;
  }
  ASSERT_EQ(::chmod(open_to_all.c_str(), 01777), 0);  // as /tmp: others cannot replace what is ours there
  DirectoryStore store(open_to_all + "/job");
}

TEST_F(DirectoryStoreTest, RefusesADirectoryOfAnotherUser) {
  if (::geteuid() != 0) return;  // only root can make one
  const std::string of_another = directory_.path() + "/another";
  ASSERT_EQ(::mkdir(of_another.c_str(), 0700), 0);
  ASSERT_EQ(::chown(of_another.c_str(), 65534, 65534), 0);
  EXPECT_THAT(test::failure_of([&] { DirectoryStore store(of_another); }), HasSubstr("belongs to another user"));
}

TEST_F(DirectoryStoreTest, WriterKilledAtAnyMomentLeavesACompleteRecord) {
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

TEST_F(DirectoryStoreTest, IgnoresTheUnfinishedFilesOfADeadWriter) {
  ASSERT_TRUE(store_.put_if("nodes/a", "old", 0));
  const std::string whole = bytes_of("nodes/a@1");
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    put_bytes("nodes/.a@2.1-1.new", whole.substr(0, length));
    EXPECT_EQ(store_.get("nodes/a")->value, "old");
    EXPECT_EQ(store_.list("nodes/").size(), 1u);
  }
  EXPECT_TRUE(store_.put_if("nodes/a", "new", 1));
  EXPECT_EQ(store_.get("nodes/a")->value, "new");
  EXPECT_FALSE(fs::exists(file("nodes/.a@2.1-1.new")));
}

TEST_F(DirectoryStoreTest, NamesADamagedRecordAndNeverReturnsIt) {
  ASSERT_TRUE(store_.put_if("incarnation", "some value", 0));
  const std::string whole = bytes_of("incarnation@1");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    put_bytes("incarnation@1", whole.substr(0, length));
    EXPECT_THAT(failure_of("incarnation"), HasSubstr(file("incarnation"))) << length;
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 4);
    put_bytes("incarnation@1", damaged);
    EXPECT_THAT(failure_of("incarnation"), HasSubstr("damaged")) << i;
  }
  EXPECT_THROW(store_.put_if("incarnation", "other", 1), Failure);
}

// A file that another program or a mishap left under any name must not block readers of the records.
TEST_F(DirectoryStoreTest, DoesNotBlockOnAPipeInPlaceOfARecord) {
  ASSERT_EQ(::mkfifo(file("incarnation").c_str(), 0600), 0);
  EXPECT_THAT(failure_of("incarnation"), HasSubstr("is not a regular file"));
  ASSERT_TRUE(store_.put_if("leader", "value", 0));
  ::unlink(file("leader@1").c_str());
  ASSERT_EQ(::mkfifo(file("leader@1").c_str(), 0600), 0);
  EXPECT_THAT(failure_of("leader"), HasSubstr("is not a regular file"));
}

TEST_F(DirectoryStoreTest, DoesNotFollowALinkInPlaceOfARecord) {
  ASSERT_TRUE(store_.put_if("leader", "value", 0));
  ASSERT_EQ(::rename(file("leader@1").c_str(), file("elsewhere").c_str()), 0);
  ASSERT_EQ(::symlink(file("elsewhere").c_str(), file("leader@1").c_str()), 0);
  EXPECT_THAT(failure_of("leader"), HasSubstr("is not a regular file"));
}

// As the store wrote them before revisions were files of their own.
TEST_F(DirectoryStoreTest, ReadsAndReplacesRecordsOfThePreviousFormat) {
  ASSERT_TRUE(store_.put_if("nodes/a", "old", 0));
  for (std::uint64_t i = 1; i < 17; ++i) ASSERT_TRUE(store_.put_if("nodes/a", "old", i));
  ASSERT_EQ(::rename(file("nodes/a@17").c_str(), file("nodes/a").c_str()), 0);
  ::unlink(file("nodes/a@0").c_str());
  ASSERT_EQ(bytes_of("nodes/a").substr(0, 25), "ckptengine record 1 17 3 ");
  EXPECT_EQ(store_.get("nodes/a"), (Entry{"nodes/a", "old", 17}));
  EXPECT_EQ(store_.list("nodes/").size(), 1u);
  EXPECT_EQ(store_.put_if("nodes/a", "new", 0), std::nullopt);
  EXPECT_EQ(store_.put_if("nodes/a", "new", 16), std::nullopt);
  EXPECT_EQ(store_.put_if("nodes/a", "new", 17), 18u);
  EXPECT_EQ(store_.get("nodes/a"), (Entry{"nodes/a", "new", 18}));
  EXPECT_EQ(store_.keys("").size(), 1u);
  EXPECT_FALSE(fs::exists(file("nodes/a")));
}

TEST_F(DirectoryStoreTest, IsReadableOnlyByItsUser) {
  DirectoryStore store(directory_.path() + "/deep/below");
  ASSERT_TRUE(store.put_if("nodes/a", "value", 0));
  const auto mode = [&](const std::string& path) {
    struct stat info {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0);
    return info.st_mode & 0777;
  };
  EXPECT_EQ(mode(directory_.path() + "/deep/below"), 0700u);
  EXPECT_EQ(mode(directory_.path() + "/deep/below/nodes"), 0700u);
  EXPECT_EQ(mode(directory_.path() + "/deep/below/nodes/a@1"), 0600u);
}

TEST_F(DirectoryStoreTest, NamesADirectoryThatCannotBeCreated) {
  put_bytes("file", "");
  try {
    DirectoryStore store(directory_.path() + "/file/store");
    FAIL();
  } catch (const Failure& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("/file is not a directory"));
  }
}

TEST_F(DirectoryStoreTest, FailsWhileItsDirectoryIsGoneAndThenWorksAgain) {
  DirectoryStore store(directory_.path() + "/gone");
  fs::remove_all(directory_.path() + "/gone");
  EXPECT_EQ(store.get("leader"), std::nullopt);
  EXPECT_TRUE(store.list("").empty());
  EXPECT_TRUE(store.put_if("leader", "value", 0));
}

}  // namespace
}  // namespace ckpt::coord
