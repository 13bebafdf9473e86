#include "coord/node_registry.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>

#include "base/error.hpp"
#include "coord/directory_store.hpp"
#include "memory_store.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::coord {
namespace {

TEST(Registry, NodeNameKeepsItsNumber) {
  test::MemoryStore store;
  std::map<std::string, std::uint32_t> ids;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 100; ++i) {
      const std::string name = "node" + std::to_string(i);
      const auto id = node_id(store, name);
      EXPECT_EQ(ids.try_emplace(name, id).first->second, id);
    }
  }
  EXPECT_EQ(store.keys("taken/").size(), 100u);
}

// They choose the same ones first, and none waits for the others.
TEST(Registry, NodesThatStartTogetherGetDifferentNumbers) {
  const test::TemporaryDirectory directory;
  DirectoryStore store(directory.path());
  constexpr std::size_t nodes = 24;
  std::vector<std::uint32_t> ids(nodes);
  {
    std::vector<std::jthread> starting;
    for (std::size_t i = 0; i < nodes; ++i)
      starting.emplace_back([&, i] { ids[i] = node_id(store, "node" + std::to_string(i)); });
  }
  EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), nodes);
}

TEST(Registry, FewNodesGetSmallNumbersAndManyNeedFewAttempts) {
  class Counting : public test::MemoryStore {
   public:
    std::optional<Entry> get(const std::string& key) override {
      ++gets;
      return MemoryStore::get(key);
    }
    int gets = 0;
  };
  Counting store;
  constexpr int many = 5'000;
  std::set<std::uint32_t> ids;
  for (int i = 0; i < many; ++i) {
    ids.insert(node_id(store, "rack" + std::to_string(i / 40) + "-" + std::to_string(i % 40)));
    if (i == 7) {
      EXPECT_LT(*ids.rbegin(), 64u);
    }
  }
  EXPECT_EQ(ids.size(), std::size_t{many});
  EXPECT_LT(*ids.rbegin(), 20u * many);
  EXPECT_LT(store.gets, 35 * many);
}

// ---- After the store forgot what it knew ----

const NodeEntry node_5{"a", 5, 11, 12, 100, "x"};

std::string value_of(Store& store, const std::string& key) {
  const auto entry = store.get(key);
  return entry ? entry->value : "nothing";
}

TEST(Registry, NodeGetsItsRememberedNumberBack) {
  test::MemoryStore store;
  EXPECT_EQ(node_id(store, "a", 5), 5u);
  EXPECT_EQ(value_of(store, "taken/5"), "a");
  EXPECT_EQ(node_id(store, "a"), 0u) << "it is free, and a name tries it first";
}

TEST(Registry, DoesNotTakeARememberedNumberThatAnotherNodeHas) {
  test::MemoryStore by_name, by_entry;
  ASSERT_TRUE(by_name.put_if("taken/5", "b", 0));
  NodeEntry other = node_5;
  other.name = "b";
  register_node(by_entry, other);  // it has yet to put its number back
  for (test::MemoryStore* store : {&by_name, &by_entry}) {
    EXPECT_NE(node_id(*store, "a", 5), 5u);
    EXPECT_NE(value_of(*store, "taken/5"), "a");
  }
}

TEST(Registry, RememberedNumberNeverReplacesARegisteredNodesNumber) {
  test::MemoryStore store;
  register_node(store, {"b", 0, 11, 12, 100, "x"});  // it has yet to put its number back
  ASSERT_TRUE(store.put_if("taken/5", "c", 0));
  EXPECT_NE(node_id(store, "a", 5), 0u);
}

TEST(Registry, RestoresOnlyVanishedRecordsOfANode) {
  test::MemoryStore store;
  EXPECT_TRUE(put_back_node(store, node_5));
  EXPECT_EQ(registered_nodes(store), (std::vector{node_5}));
  EXPECT_EQ(value_of(store, "taken/5"), "a");
  EXPECT_FALSE(put_back_node(store, node_5));
  store.remove("taken/5");
  EXPECT_TRUE(put_back_node(store, node_5));
  EXPECT_EQ(value_of(store, "taken/5"), "a");
  NodeEntry successor = node_5;
  successor.agent_id = 13;
  register_node(store, successor);
  EXPECT_FALSE(put_back_node(store, node_5));
  EXPECT_EQ(registered_nodes(store), (std::vector{successor}));
}

TEST(Registry, TakesANumberFromAnotherName) {
  test::MemoryStore store;
  take_number(store, node_5);
  EXPECT_EQ(value_of(store, "taken/5"), "a");
  take_number(store, node_5);
  ASSERT_TRUE(store.put_if("taken/5", "b", 1)) << "it was there, and was not written again";
  take_number(store, node_5);
  EXPECT_EQ(value_of(store, "taken/5"), "a");
}

TEST(Registry, NodesEntryBelongsToItsLastAgent) {
  test::MemoryStore store;
  const NodeEntry old{"a", 0, 11, 1, 100, std::string("\0\xff address", 10)};
  const NodeEntry replaced{"a", 0, 12, 2, 200, ""};
  const NodeEntry other{"b", 1, UINT64_MAX, UINT64_MAX, 300, "x"};
  register_node(store, old);
  EXPECT_EQ(registered_nodes(store), (std::vector{old}));
  register_node(store, other);
  register_node(store, replaced);
  EXPECT_EQ(registered_nodes(store), (std::vector{replaced, other}));
}

TEST(Registry, IgnoresEntriesOfAnotherFormat) {
  test::MemoryStore store;
  for (const char* text :
       {"", "[]", "{}", "{\"id\":\"x\"}", "{\"id\":1,\"arena_id\":1,\"agent_id\":1,\"pid\":1,\"address\":\"zz\"}"}) {
    const auto current = store.get("nodes/a");
    ASSERT_TRUE(store.put_if("nodes/a", text, current ? current->revision : 0));
    EXPECT_TRUE(registered_nodes(store).empty()) << text;
  }
}

// As a directory has them after a machine has died.
class DamagedStore : public test::MemoryStore {
 public:
  std::optional<Entry> get(const std::string& key) override {
    if (key == "nodes/b") throw Failure(CKPT_ERR_CORRUPT, "the coordination record nodes/b is damaged");
    return MemoryStore::get(key);
  }
  std::vector<Entry> list(const std::string& prefix) override {
    std::vector<Entry> entries;
    for (const std::string& key : keys(prefix)) entries.push_back(*get(key));
    return entries;
  }
  std::vector<std::string> keys(const std::string&) override { return {"nodes/a", "nodes/b", "nodes/c"}; }
};

TEST(Registry, NamesADamagedRecordAndReadsTheOthers) {
  DamagedStore store;
  const NodeEntry a{"a", 0, 1, 1, 100, "x"}, c{"c", 2, 1, 1, 300, "z"};
  ASSERT_TRUE(store.put_if("nodes/a", R"({"id":0,"arena_id":1,"agent_id":1,"pid":100,"address":"78"})", 0));
  ASSERT_TRUE(store.put_if("nodes/c", R"({"id":2,"arena_id":1,"agent_id":1,"pid":300,"address":"7a"})", 0));
  std::vector<std::string> damaged;
  EXPECT_EQ(registered_nodes(store, &damaged), (std::vector{a, c}));
  EXPECT_EQ(damaged, std::vector<std::string>{"the coordination record nodes/b is damaged"});
}

// A number that would have to be cut to fit is none; nor is one that no node gets.
TEST(Registry, IgnoresEntriesWithNumbersOutOfRange) {
  const auto with = [](const std::string& id, const std::string& arena_id, const std::string& pid) {
    return node_entry(
        {"nodes/a",
         R"({"id":)" + id + R"(,"arena_id":)" + arena_id + R"(,"agent_id":1,"pid":)" + pid + R"(,"address":""})", 1});
  };
  EXPECT_TRUE(with("16777215", "18446744073709551615", "9223372036854775807"));
  for (const char* id : {"-1", "1.5", "true", "16777216", "4294967296"}) EXPECT_FALSE(with(id, "1", "1")) << id;
  for (const char* arena_id : {"-1", "1e3", "18446744073709551616"}) EXPECT_FALSE(with("1", arena_id, "1")) << arena_id;
  for (const char* pid : {"-1", "9223372036854775808"}) EXPECT_FALSE(with("1", "1", pid)) << pid;
}

TEST(Registry, CreatesTheTokenOnce) {
  const test::TemporaryDirectory directory;
  DirectoryStore store(directory.path());
  std::vector<std::string> tokens(4);
  {
    std::vector<std::jthread> asking;
    for (auto& token : tokens) asking.emplace_back([&] { token = job_token(store); });
  }
  EXPECT_EQ(tokens[0].size(), 64u);
  EXPECT_EQ(std::set(tokens.begin(), tokens.end()).size(), 1u);
  test::MemoryStore another_job;
  EXPECT_NE(job_token(another_job), tokens[0]);
}

}  // namespace
}  // namespace ckpt::coord
