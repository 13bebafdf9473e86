// Compare-and-swap among files: writers that stop at any step, in any order, and die there.
#include "coord/revision_files.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <fstream>
#include <mutex>
#include <thread>

#include "base/error.hpp"
#include "coord/directory_store.hpp"
#include "support.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::coord {
namespace {

namespace fs = std::filesystem;
using Step = RevisionHooks::Step;
using testing::HasSubstr;

constexpr Step last_step = Step::swept;

std::size_t files_in(const std::string& directory) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

// Runs `meanwhile` once, when the writer gets to that step.
DirectoryStore stopping_at(const std::string& directory, Step step, std::function<void()> meanwhile) {
  auto done = std::make_shared<bool>(false);
  RevisionHooks hooks;
  hooks.reached = [=](Step now) {
    if (now == step && !std::exchange(*done, true)) meanwhile();
  };
  return DirectoryStore(directory, std::move(hooks));
}

class RevisionFilesTest : public testing::Test {
 protected:
  std::string directory() const { return directory_.path() + "/job"; }
  void write(int times) {
    for (int i = 0; i < times; ++i) {
      const auto current = store_.get("incarnation");
      ASSERT_TRUE(store_.put_if("incarnation", "other " + std::to_string(++others_), current ? current->revision : 0));
    }
  }
  test::TemporaryDirectory directory_{"/dev/shm"};
  DirectoryStore store_{directory()};
  int others_ = 0;
};

// Whoever stops between the last look and the link used to overwrite all that came meanwhile.
TEST_F(RevisionFilesTest, WriterPausedAtAnyStepWinsOnlyItsOwnRevision) {
  for (const bool exists : {false, true})
    for (int step = 0; step <= static_cast<int>(last_step); ++step)
      for (int others = 0; others <= 4; ++others) {
        SCOPED_TRACE(std::to_string(exists) + " " + std::to_string(step) + " " + std::to_string(others));
        fs::remove_all(directory());
        if (exists) write(3);
        const auto before = store_.get("incarnation");
        const std::uint64_t expected = before ? before->revision : 0;
        std::optional<Entry> newest;
        int came = 0;  // meanwhile; the first revision has none below it to sweep
        DirectoryStore slow = stopping_at(directory(), static_cast<Step>(step), [&] {
          write(came = others);
          newest = store_.get("incarnation");
        });
        const auto won = slow.put_if("incarnation", "slow", expected);
        const bool was_first = came == 0 || step >= static_cast<int>(Step::placed);
        EXPECT_EQ(won, was_first ? std::optional(expected + 1) : std::nullopt);
        const auto now = store_.get("incarnation");
        EXPECT_EQ(now->value, came == 0 ? "slow" : newest->value);
        EXPECT_EQ(now->revision, expected + static_cast<std::uint64_t>(came) + (was_first ? 1 : 0));
        write(1);
        EXPECT_EQ(store_.get("incarnation")->revision, now->revision + 1);
        EXPECT_EQ(files_in(directory()), 2u) << "the newest revision and the mark";
      }
}

TEST_F(RevisionFilesTest, WriterThatDiesAtAnyStepBlocksNoOther) {
  for (const bool exists : {false, true})
    for (int step = 0; step <= static_cast<int>(last_step); ++step) {
      SCOPED_TRACE(std::to_string(exists) + " " + std::to_string(step));
      fs::remove_all(directory());
      if (exists) write(2);
      const auto before = store_.get("incarnation");
      const pid_t child = test::fork_child([&] {
        DirectoryStore dying = stopping_at(directory(), static_cast<Step>(step), [] { ::_exit(0); });
        dying.put_if("incarnation", "dying", before ? before->revision : 0);
      });
      EXPECT_EQ(test::exit_status(child), 0);
      const auto left = store_.get("incarnation");
      EXPECT_TRUE(left == before || left->value == "dying");
      EXPECT_EQ(left != before, step >= static_cast<int>(Step::placed));
      write(2);
      EXPECT_EQ(store_.get("incarnation")->revision, (left ? left->revision : 0) + 2);
      EXPECT_EQ(files_in(directory()), 2u);
    }
}

// Two writers, one step at a time, in an order that the test chooses.
class Turns {
 public:
  // Waits until the writer may go on. At its end it says so with `ended`.
  void wait(int writer, bool ended) {
    std::unique_lock lock(mutex_);
    running_ = -1;
    if (ended) ended_[writer] = true;
    changed_.notify_all();
    if (!ended) changed_.wait(lock, [&] { return running_ == writer; });
  }
  // Lets the writer take one step; false: it has ended.
  bool take(int writer) {
    std::unique_lock lock(mutex_);
    if (ended_[writer]) return false;
    running_ = writer;
    changed_.notify_all();
    changed_.wait(lock, [&] { return running_ == -1; });
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int running_ = -1;
  bool ended_[2] = {false, false};
};

class Writer {
 public:
  Writer(const std::string& directory, Turns& turns, int number, int puts)
      : thread_([=, this, &turns] {
          turns.wait(number, false);
          RevisionHooks hooks;
          hooks.reached = [&](Step) { turns.wait(number, false); };
          DirectoryStore store(directory, std::move(hooks));
          for (int i = 0; i < puts; ++i) {
            const auto current = store.get("incarnation");
            const std::string value = std::to_string(number) + "." + std::to_string(i);
            if (auto won = store.put_if("incarnation", value, current ? current->revision : 0))
              wins.emplace_back(*won, value);
          }
          turns.wait(number, true);
        }) {}
  std::vector<std::pair<std::uint64_t, std::string>> wins;

 private:
  std::jthread thread_;
};

// All orders in which two writers can take their steps, with at most `changes` changes from one to the other. Returns
// their number.
int each_order(int changes, const std::function<void(const std::vector<int>& lengths)>& run) {
  constexpr int steps_max = 10;
  int orders = 0;
  std::vector<int> lengths;
  const std::function<void()> extend = [&] {
    run(lengths);
    ++orders;
    if (static_cast<int>(lengths.size()) == changes) return;
    for (int length = 1; length <= steps_max; ++length) {
      lengths.push_back(length);
      extend();
      lengths.pop_back();
    }
  };
  extend();
  return orders;
}

class TwoWriters : public RevisionFilesTest, public testing::WithParamInterface<int> {};  // with so many changes

TEST_P(TwoWriters, EachRevisionHasOneWinnerInEveryOrder) {
  const int orders = each_order(GetParam(), [&](const std::vector<int>& lengths) {
    fs::remove_all(directory());
    write(1);
    Turns turns;
    std::vector<std::pair<std::uint64_t, std::string>> wins;
    {
      Writer first(directory(), turns, 0, 1), second(directory(), turns, 1, 2);
      int writer = 0;
      std::uint64_t seen = 0;
      for (const int length : lengths) {
        for (int i = 0; i < length && turns.take(writer); ++i) {
          const auto now = store_.get("incarnation");
          ASSERT_TRUE(now) << "a record never vanishes";
          ASSERT_GE(now->revision, seen) << "nor does it go back";
          seen = now->revision;
        }
        writer = 1 - writer;
      }
      for (const int each : {writer, 1 - writer})
        while (turns.take(each)) {
        }
      wins = first.wins;
      wins.insert(wins.end(), second.wins.begin(), second.wins.end());
    }
    std::sort(wins.begin(), wins.end());
    for (std::size_t i = 0; i < wins.size(); ++i) ASSERT_EQ(wins[i].first, i + 2) << "revisions are won one by one";
    ASSERT_FALSE(wins.empty());
    ASSERT_EQ(store_.get("incarnation"), (Entry{"incarnation", wins.back().second, wins.back().first}));
  });
  EXPECT_EQ(orders, GetParam() == 3 ? 1 + 10 + 100 + 1000 : 1 + 10 + 100);
}

INSTANTIATE_TEST_SUITE_P(Changes, TwoWriters, testing::Values(2, 3), testing::PrintToStringParamName());

// 160 contested revisions; each winner notes which one it has won.
TEST_F(RevisionFilesTest, EachRevisionHasOneWinnerAmongContendingProcesses) {
  constexpr int processes = 4, rounds = 40;
  std::vector<pid_t> children;
  for (int p = 0; p < processes; ++p)
    children.push_back(test::fork_child([&] {
      DirectoryStore store(directory());
      for (int won = 0; won < rounds;) {
        const auto current = store.get("incarnation");
        const auto revision = store.put_if("incarnation", std::to_string(p), current ? current->revision : 0);
        if (!revision) continue;
        ++won;
        const std::string note = directory_.path() + "/won." + std::to_string(*revision);
        const int file = ::open(note.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600);
        if (file < 0) ::_exit(2);  // somebody else has won it, too
        ::close(file);
      }
    }));
  for (const pid_t child : children) EXPECT_EQ(test::exit_status(child), 0);
  EXPECT_EQ(store_.get("incarnation")->revision, static_cast<std::uint64_t>(processes * rounds));
  EXPECT_EQ(files_in(directory_.path()), static_cast<std::size_t>(processes * rounds) + 1);
}

TEST_F(RevisionFilesTest, ReadersSeeRevisionsInOrderDuringWrites) {
  constexpr int rounds = 400;
  const pid_t child = test::fork_child([&] {
    DirectoryStore store(directory());
    test::count_up(store, rounds);
  });
  for (std::uint64_t seen = 0; seen < rounds;) {
    const auto now = store_.get("counter");
    ASSERT_TRUE(now || seen == 0);
    if (!now) continue;
    ASSERT_GE(now->revision, seen);
    ASSERT_EQ(now->value, std::to_string(now->revision));
    seen = now->revision;
  }
  EXPECT_EQ(test::exit_status(child), 0);
}

// The answer to a call that NFS sent again is about its repetition.
TEST_F(RevisionFilesTest, SuccessfulLinkReportedAsFailedWins) {
  for (const int error : {EEXIST, EIO, ETIMEDOUT}) {
    const auto before = store_.get("incarnation");
    RevisionHooks hooks;
    hooks.link = [error](int at, const char* from, const char* to) {
      ::linkat(at, from, at, to, 0);
      errno = error;
      return -1;
    };
    DirectoryStore store(directory(), std::move(hooks));
    EXPECT_TRUE(store.put_if("incarnation", std::to_string(error), before ? before->revision : 0));
    EXPECT_EQ(store_.get("incarnation")->value, std::to_string(error));
  }
}

TEST_F(RevisionFilesTest, NamesAFileSystemWithoutHardLinks) {
  RevisionHooks hooks;
  hooks.link = [](int, const char*, const char*) {
    errno = EPERM;
    return -1;
  };
  DirectoryStore store(directory(), std::move(hooks));
  const std::string sentence = test::failure_of([&] { store.put_if("incarnation", "value", 0); });
  EXPECT_THAT(sentence, HasSubstr("has no hard links"));
  EXPECT_THAT(sentence, HasSubstr("option coordination"));
}

// ---- What a reader finds that has listed the directory a while ago ----

class StaleReader : public RevisionFilesTest {
 protected:
  // The next revision, by a writer that dies before it sweeps.
  void write_unswept() {
    const auto current = store_.get("incarnation");
    const pid_t child = test::fork_child([&] {
      DirectoryStore dying = stopping_at(directory(), Step::synced, [] { ::_exit(0); });
      dying.put_if("incarnation", "unswept", current ? current->revision : 0);
    });
    EXPECT_EQ(test::exit_status(child), 0);
  }
  std::uint64_t revision_read(RevisionFiles::Files listed) const {
    const auto entry = RevisionFiles::open(directory(), nullptr)->read("incarnation", "incarnation", listed);
    return entry ? entry->revision : 0;
  }
};

TEST_F(StaleReader, GetsTheNewestRevisionEvenIfTheListedOneStillExists) {
  write(1);
  const auto listed = RevisionFiles::open(directory(), nullptr)->look("incarnation");
  ASSERT_EQ(listed.newest(), 1u);
  write_unswept();
  EXPECT_EQ(revision_read(listed), 2u);
}

TEST_F(StaleReader, GetsTheNewestRevisionWhileOthersAreBeingRemoved) {
  write(1);
  const auto listed = RevisionFiles::open(directory(), nullptr)->look("incarnation");
  write_unswept();
  write_unswept();
  int removed = 0;
  RevisionHooks hooks;
  hooks.reached = [&](Step now) {
    if (now != Step::swept) return;
    ++removed;
    EXPECT_EQ(revision_read(listed), 4u) << "after " << removed;
  };
  DirectoryStore sweeping(directory(), std::move(hooks));
  EXPECT_EQ(sweeping.put_if("incarnation", "newest", 3), 4u);
  EXPECT_EQ(removed, 3);
}

// It is moved away, and the job's records are made anew in its place.
TEST_F(RevisionFilesTest, WriterWhoseDirectoryWasReplacedWinsNothing) {
  for (const Step step : {Step::read, Step::drafted}) {
    fs::remove_all(directory());
    fs::remove_all(directory() + ".old");
    write(3);
    DirectoryStore slow = stopping_at(directory(), step, [&] {
      fs::rename(directory(), directory() + ".old");
      fs::create_directory(directory());
      write(3);
    });
    EXPECT_EQ(slow.put_if("incarnation", "slow", 3), std::nullopt);
  }
}

// It may sleep while the job's records are removed and made anew.
TEST_F(RevisionFilesTest, DelayedWriterChangesNothingInANewStore) {
  for (int step = 0; step <= static_cast<int>(last_step); ++step) {
    SCOPED_TRACE(step);
    fs::remove_all(directory());
    write(3);
    std::optional<Entry> renewed;
    DirectoryStore slow = stopping_at(directory(), static_cast<Step>(step), [&] {
      fs::remove_all(directory());
      fs::create_directory(directory());
      write(3);
      renewed = store_.get("incarnation");
    });
    try {
      slow.put_if("incarnation", "slow", 3);
    } catch (const Failure&) {  // its directory is gone
    }
    EXPECT_EQ(store_.get("incarnation"), renewed);
  }
}

}  // namespace
}  // namespace ckpt::coord
