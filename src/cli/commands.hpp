// The commands of ckptctl. Each says everything there is to say in its Result; only main() prints. Failures that end a
// command are thrown (Failure).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/agents.hpp"
#include "cli/storage.hpp"

namespace ckpt::cli {

struct Result {
  std::string text;                     // for people
  nlohmann::json json;                  // the same for programs
  bool good = true;                     // the exit status
  std::optional<int> exit_status = {};  // the same, where it is not 0 or 1
};

// What the agents on this machine are doing.
Result status(const Scope& scope);

// Whether the job is protected, as its agents on this machine tell. Ends within seconds, whatever they do.
Result health(const Scope& scope);

struct HookRequest {
  std::string hook;  // as in the option member_hook
  std::string job;
  std::string change;  // lost, replaced, returned, released
  std::string node;
  std::string replacement;
  std::string reason;
  bool dry_run = false;
};

// Calls the member hook as the agents would, or only says how.
Result hook(const HookRequest& request);

struct TraceOptions {
  std::uint32_t iterations = 3;  // the last whole ones
  std::string output = "trace.json";
  std::string plot;  // a .png or .svg; empty: none
};

// Writes what the agents recorded of the last iterations, as trace events and as a plot.
Result trace(const Scope& scope, const TraceOptions& options);

// Writes a fresh token for a job to a new file that only this user can read.
Result make_token(const std::string& path);

// Ends the agents on this machine; arenas stay. Waits until each has let go of its arena, with a deadline.
Result stop(const Scope& scope);

struct GcOptions {
  bool all = false;           // every job that has no agent any more
  bool records_only = false;  // the memory stays, and the job goes on from it
};

// Removes arenas and coordination records of a job whose agents are gone.
Result gc(const Scope& scope, const GcOptions& options);

// Looks for what will hurt: little shared memory, stale arenas, agents that do not answer, tight limits, and, where
// a storage is named, what there is to say of it.
Result doctor(const Scope& scope, const StorageScope& storage = {});

}  // namespace ckpt::cli
