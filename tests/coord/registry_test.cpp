#include "coord/registry.hpp"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "base/error.hpp"
#include "coord/directory_store.hpp"
#include "memory_store.hpp"
#include "temporary_directory.hpp"

namespace ckpt::coord {
namespace {

TEST(Registry, ANameKeepsItsNumberForEver) {
  test::MemoryStore store;
  EXPECT_EQ(node_id(store, "a"), 0u);
  EXPECT_EQ(node_id(store, "b"), 1u);
  EXPECT_EQ(node_id(store, "a"), 0u);
  EXPECT_EQ(node_id(store, "c"), 2u);
  EXPECT_EQ(node_id(store, "b"), 1u);
}

TEST(Registry, NodesThatStartAtOnceGetDifferentNumbers) {
  const test::TemporaryDirectory directory;
  DirectoryStore store(directory.path());
  constexpr std::size_t nodes = 8;
  std::vector<std::uint32_t> ids(nodes);
  {
    std::vector<std::jthread> starting;
    for (std::size_t i = 0; i < nodes; ++i)
      starting.emplace_back([&, i] { ids[i] = node_id(store, "node" + std::to_string(i)); });
  }
  EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), nodes);
  EXPECT_EQ(*std::max_element(ids.begin(), ids.end()), nodes - 1);
}

TEST(Registry, ANodesEntryIsItsLastAgents) {
  test::MemoryStore store;
  const NodeEntry old{"a", 0, 11, 1, 100, std::string("\0\xff address", 10)};
  const NodeEntry replaced{"a", 0, 12, 2, 200, ""};
  const NodeEntry other{"b", 1, UINT64_MAX, UINT64_MAX, 300, "x"};
  register_node(store, old);
  EXPECT_EQ(registered_node(store, "a"), old);
  register_node(store, other);
  register_node(store, replaced);
  EXPECT_EQ(registered_nodes(store), (std::vector{replaced, other}));
  EXPECT_EQ(registered_node(store, "c"), std::nullopt);
}

TEST(Registry, EntriesOfAnotherFormatAreLeftOut) {
  test::MemoryStore store;
  for (const char* text :
       {"", "[]", "{}", "{\"id\":\"x\"}", "{\"id\":1,\"arena_id\":1,\"agent_id\":1,\"pid\":1,\"address\":\"zz\"}"}) {
    const auto current = store.get("nodes/a");
    ASSERT_TRUE(store.put_if("nodes/a", text, current ? current->revision : 0));
    EXPECT_TRUE(registered_nodes(store).empty()) << text;
  }
}

TEST(Registry, NumbersThatCannotBeReadAreAFailureNotANewNumber) {
  test::MemoryStore store;
  ASSERT_TRUE(store.put_if("ids", "{\"a\": \"x\"}", 0));
  EXPECT_THROW(node_id(store, "b"), Failure);
}

TEST(Registry, TheTokenIsMadeOnce) {
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
