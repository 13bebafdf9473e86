// What every Store promises, run against each implementation.
#include "coord/store.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "base/error.hpp"
#include "coord/directory_store.hpp"
#include "memory_store.hpp"
#include "temporary_directory.hpp"

namespace ckpt::coord {
namespace {

struct Implementation {
  const char* name;
  std::function<std::unique_ptr<Store>(const std::string& directory)> make;
};

class StoreConformance : public testing::TestWithParam<Implementation> {
 protected:
  test::TemporaryDirectory directory_;
  std::unique_ptr<Store> store_ = GetParam().make(directory_.path() + "/store");
};

TEST_P(StoreConformance, WhatWasNeverPutIsNotThere) {
  EXPECT_EQ(store_->get("root"), std::nullopt);
  EXPECT_TRUE(store_->list("").empty());
}

TEST_P(StoreConformance, WhatWasPutIsReadBackWithItsRevision) {
  const auto revision = store_->put_if("nodes/a", "one", 0);
  ASSERT_TRUE(revision);
  EXPECT_GT(*revision, 0u);
  EXPECT_EQ(store_->get("nodes/a"), (Entry{"nodes/a", "one", *revision}));
}

TEST_P(StoreConformance, RevisionsGrow) {
  std::uint64_t revision = 0;
  for (int i = 0; i < 10; ++i) {
    const auto next = store_->put_if("key", std::to_string(i), revision);
    ASSERT_TRUE(next);
    EXPECT_GT(*next, revision);
    revision = *next;
  }
  EXPECT_EQ(store_->get("key")->value, "9");
}

TEST_P(StoreConformance, AStaleRevisionChangesNothing) {
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

TEST_P(StoreConformance, ListIsByPrefixAndInOrder) {
  for (const char* key : {"nodes/b", "nodes/a", "nodesX", "root"}) ASSERT_TRUE(store_->put_if(key, key, 0));
  const auto nodes = store_->list("nodes/");
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].key, "nodes/a");
  EXPECT_EQ(nodes[1].value, "nodes/b");
  EXPECT_EQ(store_->list("").size(), 4u);
}

TEST_P(StoreConformance, ValuesAreBytes) {
  const std::string bytes("\0\n\xff end \n", 9);
  for (const std::string& value : {bytes, std::string(), std::string(100000, 'x')}) {
    const auto current = store_->get("key");
    ASSERT_TRUE(store_->put_if("key", value, current ? current->revision : 0));
    EXPECT_EQ(store_->get("key")->value, value);
  }
}

TEST_P(StoreConformance, KeysThatCouldLeaveTheStoreAreRefused) {
  for (const char* key : {"", "/", "../x", "a/../b", "a//b", "/etc/x", "a/", ".hidden", "a b", "a\n"}) {
    EXPECT_THROW(store_->put_if(key, "value", 0), Failure) << key;
    EXPECT_THROW(store_->get(key), Failure) << key;
  }
}

TEST_P(StoreConformance, OfThreadsThatSwapAtOnceExactlyOneWinsEachRevision) {
  constexpr int threads = 4, rounds = 50;
  std::atomic<int> wins = 0;
  std::vector<std::jthread> writers;
  for (int t = 0; t < threads; ++t)
    writers.emplace_back([&] {
      for (int i = 0; i < rounds;) {
        const auto current = store_->get("counter");
        const int value = current ? std::stoi(current->value) : 0;
        if (!store_->put_if("counter", std::to_string(value + 1), current ? current->revision : 0)) continue;
        ++wins, ++i;
      }
    });
  writers.clear();
  EXPECT_EQ(wins, threads * rounds);
  EXPECT_EQ(store_->get("counter")->value, std::to_string(threads * rounds));
}

INSTANTIATE_TEST_SUITE_P(
    All, StoreConformance,
    testing::Values(Implementation{"Directory",
                                   [](const std::string& path) { return std::make_unique<DirectoryStore>(path); }},
                    Implementation{"Memory", [](const std::string&) { return std::make_unique<test::MemoryStore>(); }}),
    [](const auto& implementation) { return implementation.param.name; });

}  // namespace
}  // namespace ckpt::coord
