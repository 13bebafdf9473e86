// The commands of ckptctl, except those for storage and placement. Each returns its output in a Result, which main()
// prints. A command throws Failure if an error ends it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/agents.hpp"
#include "cli/storage/storage.hpp"

namespace ckpt::cli {

struct Result {
  std::string text;                     // for people
  nlohmann::json json;                  // the same for programs
  bool good = true;                     // the exit status
  std::optional<int> exit_status = {};  // the exit status, if it is not 0 or 1
};

// Shows what the agents on this machine are doing.
Result status(const Scope& scope);

// Says whether the job is protected, according to its agents on this machine. Ends within seconds, whatever they do.
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

// Calls the member hook as the agents would, or only prints what it would call.
Result hook(const HookRequest& request);

struct TraceOptions {
  std::uint32_t iterations = 3;  // number of complete iterations, the last ones
  std::string output = "trace.json";
  std::string plot;  // a .png or .svg; empty: none
};

// Writes the agents' records of the last iterations as trace events and as a plot.
Result trace(const Scope& scope, const TraceOptions& options);

// Writes a fresh token for a job to a new file that only this user can read.
Result make_token(const std::string& path);

// Ends the agents on this machine; arenas stay. Waits until each has released its arena, with a deadline.
Result stop(const Scope& scope);

struct GcOptions {
  bool all = false;           // remove every job that has no agent any more
  bool records_only = false;  // keep the memory, so that the job can go on from it
};

// Removes arenas and coordination records of a job whose agents are gone.
Result gc(const Scope& scope, const GcOptions& options);

// Looks for problems: little shared memory, stale arenas, agents that do not answer, tight limits and, if a storage is
// named, faults of that storage.
Result doctor(const Scope& scope, const StorageScope& storage = {});

}  // namespace ckpt::cli
