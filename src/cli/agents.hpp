// The arenas and agents on this machine, as a tool finds them: by the directories below arena_dir.
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

// Which arenas a command is about.
struct Scope {
  std::string arena_dir;
  coord::StoreLocation coordination;
  std::string job;   // empty: every job's
  std::string node;  // empty: every node's
};

struct Arena {
  std::string job;
  std::string node;
  std::string directory;
  std::optional<arena::ArenaSummary> summary;  // nothing where it is of another version
  bool has_agent() const { return summary && summary->in_use; }
};

// By job and node. `arena_dir` need not exist, and what else is in it is not seen.
std::vector<Arena> find_arenas(const Scope& scope);

// A sentence about why there is nothing in scope, naming the jobs that are there.
std::string nothing_found(const Scope& scope, const char* what);

struct Answer {
  nlohmann::json body;
  std::int64_t pid = 0;
};
// Asks the agent of an arena. Throws Failure (CKPT_ERR_NO_AGENT, CKPT_ERR_TIMEOUT) with its process in the sentence.
Answer ask(const Arena& arena, const nlohmann::json& request, std::int64_t timeout_ms = 5000);

// A sentence for an answer that lacks what is asked of it, as an agent of another version gives it.
std::string not_understood(const Arena& arena);

std::uint64_t directory_bytes(const std::string& directory);

}  // namespace ckpt::cli
