// The register of a job's nodes in the coordination store: the nodes' numbers, their agents' addresses, and the job's
// token.
//
// The records' keys:
//   taken/<number>   the name of the node that has this number, for ever
//   nodes/<name>     the agent that serves the node now (NodeEntry)
//   rivals/<name>    an agent that was refused, because another agent serves the node
//   token            the job's token
// The functions throw Failure if the store does, or if other writers win every compare-and-swap.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coord/store.hpp"

namespace ckpt::coord {

inline constexpr std::string_view taken_prefix = "taken/";

struct NodeEntry {
  std::string name;
  std::uint32_t id = 0;        // the node's number
  std::uint64_t arena_id = 0;  // id of the node's arena
  std::uint64_t agent_id = 0;  // random; a new one each time the agent starts
  std::int64_t pid = 0;        // process id of the agent
  std::string address;         // the agent's address, in bytes that only the transport understands
  bool operator==(const NodeEntry&) const = default;
};

std::string node_key(const std::string& name);
// The key of the record in which a refused agent leaves its machine and its address. The agent that serves the node
// reads it.
std::string rival_key(const std::string& name);

// Returns the number of the node `name`. The first call takes a free number, which is small if there are few nodes. The
// node keeps that number for ever. `remembered` is the number that the node's arena has. If the store has lost this
// number, and no other node has taken it, the node gets it again.
std::uint32_t node_id(Store& store, const std::string& name, std::optional<std::uint32_t> remembered = {});

// Writes the node's entry. If the store has an entry for this node already, calls `may_replace` with that entry, and
// keeps it if `may_replace` returns false. If `may_replace` is empty, always replaces the entry.
void register_node(Store& store, const NodeEntry& node,
                   const std::function<bool(const NodeEntry& there)>& may_replace = {});
// Writes the node's entry and the record of its number again, each only if it is gone. Does not replace a record that
// others wrote. Returns whether it wrote a record.
bool put_back_node(Store& store, const NodeEntry& node);
// Records that the number `node.id` is this node's, even if the store says that another node has it.
void take_number(Store& store, const NodeEntry& node);

// Parses a record whose key begins with "nodes/". Returns nothing if its value is not a NodeEntry.
std::optional<NodeEntry> node_entry(const Entry& entry);

// Returns all nodes that ever registered, sorted by name. Leaves out records that are damaged or have another format.
// Adds a sentence for each damaged record to `damaged`, which may be null.
std::vector<NodeEntry> registered_nodes(Store& store, std::vector<std::string>* damaged = nullptr);

// Returns a new token: 32 random bytes as hex digits.
std::string fresh_token();
// Returns the job's token. If the store has none, first stores `remembered`, or a new token if that is empty.
std::string job_token(Store& store, const std::string& remembered = "");

}  // namespace ckpt::coord
