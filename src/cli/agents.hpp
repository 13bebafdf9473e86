// Finds the arenas and agents on this machine for ckptctl, by the directories below arena_dir, and asks them questions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "arena/node_arena.hpp"
#include "base/frame_socket.hpp"
#include "coord/open_store.hpp"

namespace ckpt::cli {

// Selects the arenas that a command is about.
struct Scope {
  std::string arena_dir;
  coord::StoreLocation coordination;
  std::string job;   // empty: the arenas of every job
  std::string node;  // empty: the arenas of every node
};

struct Arena {
  std::string job;
  std::string node;
  std::string directory;
  std::optional<arena::ArenaSummary> summary;  // nothing if the arena is of another version
  bool has_agent() const { return summary && summary->in_use; }
};

// The arenas, sorted by job and node. `arena_dir` need not exist. Ignores other files in it.
std::vector<Arena> find_arenas(const Scope& scope);

// A sentence that says why nothing is in scope, and names the jobs that exist.
std::string nothing_found(const Scope& scope, const char* what);

struct Answer {
  nlohmann::json body;
  std::int64_t pid = 0;
};
// Asks the agent of an arena. Throws Failure (CKPT_ERR_NO_AGENT, CKPT_ERR_TIMEOUT); the sentence names the agent's
// process.
Answer ask(const Arena& arena, const nlohmann::json& request, std::int64_t timeout_ms = 5000);

// A sentence for an answer without the expected fields. An agent of another version may give such an answer.
std::string not_understood(const Arena& arena);

std::uint64_t directory_bytes(const std::string& directory);

}  // namespace ckpt::cli
