// What every Store promises, run against each implementation.
#include "coord/store.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>

#include "base/error.hpp"
#include "coord/open_store.hpp"
#include "etcd_server.hpp"
#include "memory_store.hpp"
#include "support.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::coord {
namespace {

// Where a test's store is.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::unique_ptr<Store> open() = 0;  // one more way to the same records
  virtual bool has_processes() const { return true; }
};

class Directory : public Backend {
 public:
  std::unique_ptr<Store> open() override { return open_store(directory_.path(), "job"); }

 private:
  const test::TemporaryDirectory directory_;
};

class Etcd : public Backend {
 public:
  std::unique_ptr<Store> open() override { return open_store(server_.location(), "job"); }

 private:
  const test::EtcdServer server_;
};

class Memory : public Backend {
 public:
  std::unique_ptr<Store> open() override { return std::make_unique<Handle>(*this); }
  bool has_processes() const override { return false; }

 private:
  struct Handle : Store {
    explicit Handle(Memory& owner) : store(owner.store_) {}
    std::optional<Entry> get(const std::string& key) override { return store.get(key); }
    std::optional<std::uint64_t> put_if(const std::string& key, const std::string& value,
                                        std::uint64_t expected) override {
      return store.put_if(key, value, expected);
    }
    std::vector<Entry> list(const std::string& prefix) override { return store.list(prefix); }
    std::vector<std::string> keys(const std::string& prefix) override { return store.keys(prefix); }
    void remove(const std::string& key) override { store.remove(key); }
    std::unique_ptr<Watch> watch(std::function<void(const Entry&)> on_change) override {
      return store.watch(std::move(on_change));
    }
    test::MemoryStore& store;
  };
  test::MemoryStore store_;
};

struct Implementation {
  const char* name;
  std::function<std::unique_ptr<Backend>()> make;
};

class StoreConformance : public testing::TestWithParam<Implementation> {
 protected:
  const std::unique_ptr<Backend> backend_ = GetParam().make();
  const std::unique_ptr<Store> store_ = backend_->open();
};

TEST_P(StoreConformance, DoesNotFindAMissingRecord) {
  EXPECT_EQ(store_->get("leader"), std::nullopt);
  EXPECT_TRUE(store_->list("").empty());
}

TEST_P(StoreConformance, ReadsBackARecordWithItsRevision) {
  const auto revision = store_->put_if("nodes/a", "one", 0);
  ASSERT_TRUE(revision);
  EXPECT_GT(*revision, 0u);
  EXPECT_EQ(store_->get("nodes/a"), (Entry{"nodes/a", "one", *revision}));
  EXPECT_EQ(backend_->open()->get("nodes/a"), (Entry{"nodes/a", "one", *revision}));
}

TEST_P(StoreConformance, RevisionsIncrease) {
  std::uint64_t revision = 0;
  for (int i = 0; i < 10; ++i) {
    const auto next = store_->put_if("key", std::to_string(i), revision);
    ASSERT_TRUE(next);
    EXPECT_GT(*next, revision);
    revision = *next;
  }
  EXPECT_EQ(store_->get("key")->value, "9");
}

TEST_P(StoreConformance, RevisionsOfKeysAreIndependent) {
  const auto first = store_->put_if("first", "value", 0);
  ASSERT_TRUE(store_->put_if("second", "value", 0));
  EXPECT_EQ(store_->get("first")->revision, first);
  EXPECT_TRUE(store_->put_if("first", "other", *first));
}

TEST_P(StoreConformance, PutWithAStaleRevisionChangesNothing) {
  const auto first = store_->put_if("key", "first", 0);
  const auto second = store_->put_if("key", "second", *first);
  EXPECT_EQ(store_->put_if("key", "third", *first), std::nullopt);
  EXPECT_EQ(store_->put_if("key", "third", 0), std::nullopt);
  EXPECT_EQ(store_->put_if("key", "third", *second + 7), std::nullopt);
  EXPECT_EQ(store_->get("key"), (Entry{"key", "second", *second}));
}

TEST_P(StoreConformance, CreationExpectsRevisionZero) {
  EXPECT_EQ(store_->put_if("key", "value", 1), std::nullopt);
  EXPECT_EQ(store_->get("key"), std::nullopt);
  EXPECT_TRUE(store_->list("").empty());
}

TEST_P(StoreConformance, ListsByPrefixInOrder) {
  for (const char* key : {"nodes/b", "nodes/a", "nodesX", "leader"}) ASSERT_TRUE(store_->put_if(key, key, 0));
  const auto nodes = store_->list("nodes/");
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].key, "nodes/a");
  EXPECT_EQ(nodes[1].value, "nodes/b");
  EXPECT_EQ(nodes[1].revision, store_->get("nodes/b")->revision);
  EXPECT_EQ(store_->list("nodes").size(), 3u);
  EXPECT_EQ(store_->list("").size(), 4u);
}

TEST_P(StoreConformance, KeysMatchTheListWithoutValues) {
  for (const char* key : {"rank_assignments/2", "rank_assignments/1", "rank_assignmentsX", "leader"})
    ASSERT_TRUE(store_->put_if(key, key, 0));
  EXPECT_EQ(store_->keys("rank_assignments/"), (std::vector<std::string>{"rank_assignments/1", "rank_assignments/2"}));
  EXPECT_EQ(store_->keys("").size(), 4u);
  EXPECT_TRUE(store_->keys("nodes/").empty());
}

TEST_P(StoreConformance, RemovedRecordCanBeCreatedAgain) {
  for (const char* key : {"rank_assignments/1", "rank_assignments/2"}) ASSERT_TRUE(store_->put_if(key, key, 0));
  store_->remove("rank_assignments/1");
  store_->remove("rank_assignments/1");
  store_->remove("rank_assignments/3");
  EXPECT_EQ(store_->get("rank_assignments/1"), std::nullopt);
  EXPECT_EQ(store_->keys(""), std::vector<std::string>{"rank_assignments/2"});
  EXPECT_TRUE(store_->put_if("rank_assignments/1", "again", 0));
  EXPECT_EQ(backend_->open()->get("rank_assignments/1")->value, "again");
}

TEST_P(StoreConformance, ValuesHoldAnyBytes) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  for (const std::string& value : {bytes, bytes.substr(1), bytes.substr(2), std::string()}) {
    const auto current = store_->get("key");
    ASSERT_TRUE(store_->put_if("key", value, current ? current->revision : 0));
    EXPECT_EQ(store_->get("key")->value, value);
  }
}

TEST_P(StoreConformance, AcceptsValuesUpToTheSizeLimit) {
  for (int i = 0; i < 6; ++i)
    ASSERT_TRUE(
        store_->put_if("large/" + std::to_string(i), std::string(value_bytes_max, static_cast<char>(200 + i)), 0));
  const auto all = store_->list("large/");
  ASSERT_EQ(all.size(), 6u);
  EXPECT_TRUE(all[5].value == std::string(value_bytes_max, static_cast<char>(205)));
  EXPECT_THROW(store_->put_if("key", std::string(value_bytes_max + 1, 'x'), 0), Failure);
}

TEST_P(StoreConformance, RefusesKeysThatCouldLeaveTheStore) {
  for (const char* key : {"", "/", "../x", "a/../b", "a//b", "/etc/x", "a/", ".hidden", "a b", "a\n"}) {
    EXPECT_THROW(store_->put_if(key, "value", 0), Failure) << key;
    EXPECT_THROW(store_->get(key), Failure) << key;
    EXPECT_THROW(store_->remove(key), Failure) << key;
  }
}

TEST_P(StoreConformance, EachRevisionHasOneWinnerAmongThreads) {
  constexpr int threads = 4, rounds = 40;
  {
    std::vector<std::jthread> writers;
    for (int t = 0; t < threads; ++t) writers.emplace_back([&] { test::count_up(*store_, rounds); });
  }
  EXPECT_EQ(store_->get("counter")->value, std::to_string(threads * rounds));
}

TEST_P(StoreConformance, EachRevisionHasOneWinnerAmongProcesses) {
  constexpr int processes = 4, rounds = 30;
  if (!backend_->has_processes()) return;
  std::vector<pid_t> children;
  for (int p = 0; p < processes; ++p)
    children.push_back(test::fork_child([&] { test::count_up(*backend_->open(), rounds); }));
  for (const pid_t child : children) EXPECT_EQ(test::exit_status(child), 0);
  EXPECT_EQ(store_->get("counter")->value, std::to_string(processes * rounds));
}

TEST_P(StoreConformance, WatchReportsTheLastChangeOfEveryWriter) {
  test::Notified notified;
  ASSERT_TRUE(store_->put_if("before", "old", 0));
  const auto watch = store_->watch(notified.listener());
  if (watch == nullptr) return;
  ASSERT_TRUE(store_->put_if("nodes/a", "0", 0));
  for (int i = 1; i <= 50; ++i)
    ASSERT_TRUE(backend_->open()->put_if("nodes/a", std::to_string(i), store_->get("nodes/a")->revision));
  EXPECT_TRUE(notified.becomes("nodes/a", "50"));
  ASSERT_TRUE(store_->put_if("before", "new", store_->get("before")->revision));
  EXPECT_TRUE(notified.becomes("before", "new"));
}

TEST_P(StoreConformance, WatchDoesNotReportLongRecords) {
  test::Notified notified;
  ASSERT_TRUE(store_->put_if("rank_assignments/1", "long", 0));
  const auto watch = store_->watch(notified.listener());
  if (watch == nullptr) return;
  ASSERT_TRUE(store_->put_if("rank_assignments/2", "long", 0));
  store_->remove("rank_assignments/1");
  ASSERT_TRUE(store_->put_if("leader", "last", 0));
  ASSERT_TRUE(notified.becomes("leader", "last"));
  EXPECT_EQ(notified.count(), 1u);
}

TEST_P(StoreConformance, DestroyedWatchReportsNothing) {
  test::Notified notified, others;
  auto watch = store_->watch(notified.listener());
  if (watch == nullptr) return;
  ASSERT_TRUE(store_->put_if("key", "first", 0));
  ASSERT_TRUE(notified.becomes("key", "first"));
  watch.reset();
  const auto count = notified.count();
  const auto another = store_->watch(others.listener());
  ASSERT_TRUE(store_->put_if("key", "second", store_->get("key")->revision));
  ASSERT_TRUE(others.becomes("key", "second"));
  EXPECT_EQ(notified.count(), count);
}

template <class Kind>
Implementation implementation(const char* name) {
  return {name, [] { return std::make_unique<Kind>(); }};
}

INSTANTIATE_TEST_SUITE_P(All, StoreConformance,
                         testing::Values(implementation<Directory>("Directory"), implementation<Etcd>("Etcd"),
                                         implementation<Memory>("Memory")),
                         [](const auto& parameter) { return parameter.param.name; });

}  // namespace
}  // namespace ckpt::coord
