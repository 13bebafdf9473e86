// Finds the arenas on this machine for ckptctl, by the directories below arena_dir. Sends requests to their agents.
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

// Where to look for arenas, and which of them a command is about.
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
  std::optional<arena::ArenaSummary> summary;  // nothing if another version of ckptengine made the arena
  bool has_agent() const { return summary && summary->in_use; }
};

// Returns the arenas in scope, sorted by job and node. Returns none if `arena_dir` does not exist. Ignores other files
// in `arena_dir`.
std::vector<Arena> find_arenas(const Scope& scope);

// Returns the error for a scope in which nothing was found: "there is no `what` of job ...". It also names the jobs
// that have arenas here.
std::string nothing_found(const Scope& scope, const char* what);

struct Answer {
  nlohmann::json body;
  std::int64_t pid = 0;  // of the agent
};
// Sends a request to the agent of an arena and returns the answer. Throws Failure: CKPT_ERR_NO_AGENT if no agent
// listens there, CKPT_ERR_TIMEOUT if the agent does not answer, or the status with which the agent refuses.
Answer ask(const Arena& arena, const nlohmann::json& request, std::int64_t timeout_ms = 5000);

// Returns the error for an answer without the expected fields. An agent of another version may give such an answer.
std::string not_understood(const Arena& arena);

// Returns how much space the files in a directory take, its subdirectories included.
std::uint64_t directory_bytes(const std::string& directory);

}  // namespace ckpt::cli
