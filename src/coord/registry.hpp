// Who takes part in a job: node numbers, the agents' addresses, the job's secret.
//
// Store keys: "taken/<number>" (the name of the node that has it, for ever), "nodes/<name>" (the agent that serves the
// node now), "token". Free functions over a Store; they throw Failure where it does, or when compare-and-swap never
// wins.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coord/store.hpp"

namespace ckpt::coord {

inline constexpr std::string_view taken_prefix = "taken/";

struct NodeEntry {
  std::string name;
  std::uint32_t id = 0;
  std::uint64_t arena_id = 0;
  std::uint64_t agent_id = 0;  // of this life of the agent
  std::int64_t pid = 0;
  std::string address;  // opaque bytes of the transport
  bool operator==(const NodeEntry&) const = default;
};

// The number of the node `name`: one that is free at first, the same one ever after. Small where there are few nodes.
std::uint32_t node_id(Store& store, const std::string& name);

// Puts this node's entry, whoever's was there before.
void register_node(Store& store, const NodeEntry& node);

// What a record whose key begins with "nodes/" says; nothing where it is of another format.
std::optional<NodeEntry> node_entry(const Entry& entry);

// All nodes that ever registered, by name. Entries of another format are left out, and so are damaged ones: `damaged`,
// if not null, gets why, a sentence each.
std::vector<NodeEntry> registered_nodes(Store& store, std::vector<std::string>* damaged = nullptr);
std::optional<NodeEntry> registered_node(Store& store, const std::string& name);

// 32 random bytes as hex digits.
std::string fresh_token();
// The job's, made at its first use.
std::string job_token(Store& store);

}  // namespace ckpt::coord
