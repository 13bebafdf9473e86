// The commands of ckptctl for agents and arenas. The commands `plan` and `placement`, and those for storage, have
// headers of their own. Each returns its output in a Result, which main() prints. A command throws Failure if an error
// ends it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/agents.hpp"
#include "cli/storage/storage.hpp"

namespace ckpt::cli {

struct Result {
  std::string text;                     // for people
  nlohmann::json json;                  // the same for programs
  bool good = true;                     // true: exit status 0; false: 1
  std::optional<int> exit_status = {};  // if set, the exit status in place of 0 or 1
};

// Shows what the agents on this machine are doing.
Result status(const Scope& scope);

// Says whether the job is protected, according to its agents on this machine. Ends within seconds, even if no agent
// answers.
Result health(const Scope& scope);

struct HookRequest {
  std::string hook;  // command or URL, as in the option member_hook
  std::string job;
  std::string change;       // what happened to the node: lost, replaced, returned, released
  std::string node;         // the node's name
  std::string replacement;  // name of the node that replaces it; "" unless `change` is replaced
  std::string reason;       // why it is lost, e.g. unreachable; "" unless `change` is lost
  bool dry_run = false;     // only print the call
};

// Calls the member hook as the leader's agent would. A dry run only prints the call.
Result hook(const HookRequest& request);

struct TraceOptions {
  std::uint32_t iterations = 3;       // how many of the last complete iterations to show
  std::string output = "trace.json";  // file for the trace events
  std::string plot;                   // file for the plot, a .png or .svg; empty: no plot
};

// Writes what the agents recorded of the last iterations: as trace events and, if asked for, as a plot.
Result trace(const Scope& scope, const TraceOptions& options);

// Writes a fresh token for a job to a new file that only this user can read.
Result make_token(const std::string& path);

// Ends the agents on this machine. Their arenas stay. Waits with a deadline until each agent has released its arena.
Result stop(const Scope& scope);

struct GcOptions {
  bool all = false;           // every job whose agents are gone
  bool records_only = false;  // remove no arena, so that the job can go on from its memory
};

// Removes the arenas and the coordination records of a job whose agents are gone.
Result gc(const Scope& scope, const GcOptions& options);

// Looks for problems: little shared memory, stale arenas, agents that do not answer, low limits of open files and
// locked memory and, if a storage is named, faults of that storage.
Result doctor(const Scope& scope, const StorageScope& storage = {});

}  // namespace ckpt::cli
