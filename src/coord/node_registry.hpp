// The register of a job's nodes in the coordination store: numbers, agents' addresses, and the job's token.
//
// The keys are "taken/<number>" (the node that has the number, for ever), "nodes/<name>" (the agent that serves the
// node now), "rivals/<name>" (an agent that was refused) and "token". The functions throw Failure if the store does, or
// if compare-and-swap never succeeds.
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
  std::uint32_t id = 0;
  std::uint64_t arena_id = 0;
  std::uint64_t agent_id = 0;  // of this run of the agent
  std::int64_t pid = 0;
  std::string address;  // opaque bytes of the transport
  bool operator==(const NodeEntry&) const = default;
};

std::string node_key(const std::string& name);
// The key under which a refused agent leaves a note for the agent that serves the node: its machine and its address.
std::string rival_key(const std::string& name);

// Returns the number of the node `name`. The first call takes a free number, a small one if there are few nodes. The
// node keeps that number for ever.
// `remembered` is the number in the node's arena. It is used if the store has forgotten the number and no other node
// uses it.
std::uint32_t node_id(Store& store, const std::string& name, std::optional<std::uint32_t> remembered = {});

// Writes this node's entry. If there is one already, asks `may_replace` whether to replace it.
void register_node(Store& store, const NodeEntry& node,
                   const std::function<bool(const NodeEntry& there)>& may_replace = {});
// Writes the node's entry and number again if they are gone, unless others have taken them. Returns whether any was
// gone.
bool put_back_node(Store& store, const NodeEntry& node);
// Gives the number to this node, even if another has it.
void take_number(Store& store, const NodeEntry& node);

// Parses a record whose key begins with "nodes/". Nothing if it has another format.
std::optional<NodeEntry> node_entry(const Entry& entry);

// All nodes that ever registered, by name. Entries that are damaged or have another format are left out. For each
// damaged one, `damaged` (if not null) gets a sentence that says why.
std::vector<NodeEntry> registered_nodes(Store& store, std::vector<std::string>* damaged = nullptr);

// 32 random bytes as hex digits.
std::string fresh_token();
// The job's token. If the store has none, stores `remembered` or, if that is empty, a new one.
std::string job_token(Store& store, const std::string& remembered = "");

}  // namespace ckpt::coord
