#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "agent/trainers/claims.hpp"
#include "arena/node_arena.hpp"
#include "base/error.hpp"
#include "base/unique_fd.hpp"
#include "cli/commands.hpp"
#include "cli/probe.hpp"
#include "cli/table.hpp"
#include "coord/node_registry.hpp"
#include "coord/open_store.hpp"

namespace ckpt::cli {
namespace {

namespace fs = std::filesystem;

// A leader that somebody obeys renews its record every lease_ms / 4: every 500 ms unless options say otherwise.
constexpr std::chrono::milliseconds watch_records{1500};
constexpr std::int64_t probe_timeout_ms = 1000;
constexpr std::int64_t lock_wait_limit_ms = 5000;

std::set<std::string> jobs_in(const Scope& scope) {
  std::set<std::string> jobs;
  for (const Arena& arena : find_arenas(scope)) jobs.insert(arena.job);
  // An etcd has the jobs of whole clusters. Jobs that never ran on this machine are removed only by name.
  if (scope.coordination.is_etcd() && scope.job.empty()) return jobs;
  for (const std::string& job : coord::jobs_with_records(scope.coordination))
    if (scope.job.empty() || job == scope.job) jobs.insert(job);
  return jobs;
}

struct Job {
  std::string name;
  std::vector<Arena> arenas;
  std::string why;            // why it must not be touched; "" if it may be
  coord::JobRecords records;  // as they were first read
};

std::string alive_here(const std::vector<Arena>& arenas) {
  for (const Arena& arena : arenas) {
    if (arena.has_agent()) return "its agent on node " + arena.node + " is running; end it first (ckptctl stop)";
    for (const agent::LivingTrainer& trainer : agent::living_trainers(arena.directory))
      return "a trainer of rank " + std::to_string(trainer.rank) + " on node " + arena.node +
             " is running; end it first";
  }
  return "";
}

// Says which agent is alive on the nodes that have no arena here. alive_here() looks at the other nodes.
std::string alive_elsewhere(const Job& job) {
  std::map<std::string, std::string> nodes;  // by address
  for (const coord::Entry& entry : job.records.entries)
    if (entry.key.starts_with("nodes/"))
      if (const auto node = coord::node_entry(entry)) nodes[node->address] = node->name;
  std::set<std::string> addresses;
  const auto is_here = [&](const std::string& node) {
    return std::any_of(job.arenas.begin(), job.arenas.end(), [&](const Arena& arena) { return arena.node == node; });
  };
  for (const auto& [address, node] : nodes)
    if (!is_here(node)) addresses.insert(address);
  const auto answered = who_answers(addresses, probe_timeout_ms);
  if (answered.empty()) return "";
  return "its agent on node " + nodes[*answered.begin()] + " answers at " + *answered.begin() +
         "; end it first (ckptctl stop, on its machine)";
}

// Watches the records of all jobs that no process here belongs to, at once, for as long as a living leader needs to
// show itself.
std::vector<Job> look_at_jobs(const Scope& scope) {
  std::vector<Job> jobs;
  for (const std::string& name : jobs_in(scope)) {
    Job job{name, find_arenas({scope.arena_dir, scope.coordination, name, ""}), "", {}};
    job.why = alive_here(job.arenas);
    if (job.why.empty()) job.records = coord::look_at_records(scope.coordination, name);
    if (job.why.empty()) job.why = alive_elsewhere(job);
    jobs.push_back(std::move(job));
  }
  const auto is_unclear = [](const Job& job) { return job.why.empty() && !job.records.entries.empty(); };
  if (std::none_of(jobs.begin(), jobs.end(), is_unclear)) return jobs;
  std::this_thread::sleep_for(watch_records);
  for (Job& job : jobs)
    if (is_unclear(job) && coord::look_at_records(scope.coordination, job.name).entries != job.records.entries)
      job.why = "its agents are running on other nodes; end them first (ckptctl stop, on those nodes)";
  return jobs;
}

// Locks an arena, so that no agent attaches to half of it.
UniqueFd lock_of(const Arena& arena) {
  UniqueFd lock(::open((arena.directory + "/node").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!lock) throw_errno(CKPT_ERR_SYSTEM, "cannot open " + arena.directory + "/node");
  if (!arena::lock_alone(lock.get(), arena.directory, lock_wait_limit_ms))
    throw Failure(CKPT_ERR_CLAIMED,
                  "an agent has just taken the arena " + arena.directory +
                      ", so this arena was not removed; stop that agent (ckptctl stop), then repeat this command");
  return lock;
}

// Call it while nobody can attach to the job's arenas.
void remove_records(const Scope& scope, const Job& job) {
  if (!coord::remove_records(scope.coordination, job.name, job.records))
    throw Failure(
        CKPT_ERR_CLAIMED,
        "the records of job " + job.name +
            " have just changed, so its agents run on other nodes; end them first (ckptctl stop, on those nodes)");
}

// Returns the number of bytes freed.
std::uint64_t remove_arenas(const Scope& scope, const Job& job) {
  std::uint64_t bytes = 0;
  try {
    for (const Arena& arena : job.arenas) {
      const std::uint64_t arena_bytes = directory_bytes(arena.directory);
      fs::remove_all(arena.directory);
      bytes += arena_bytes;
    }
    std::error_code not_empty;
    fs::remove(scope.arena_dir + "/" + job.name, not_empty);
  } catch (const fs::filesystem_error& error) {
    throw Failure(CKPT_ERR_SYSTEM, "cannot remove the files of job " + job.name + ": " + error.what());
  }
  return bytes;
}

}  // namespace

Result gc(const Scope& scope, const GcOptions& options) {
  if (scope.job.empty() && !options.all)
    throw Failure(CKPT_ERR_INVALID, "no job is named; name it with --job, or give --all");
  Result result;
  result.json = {{"removed", nlohmann::json::array()}, {"kept", nlohmann::json::array()}};
  for (const Job& job : look_at_jobs({scope.arena_dir, scope.coordination, scope.job, ""})) {
    if (!job.why.empty()) {
      result.text += "job " + job.name + " is kept: " + job.why + "\n";
      result.json["kept"].push_back({{"job", job.name}, {"why", job.why}});
      result.good = options.all && result.good;
      continue;
    }
    std::vector<UniqueFd> locks;
    for (const Arena& arena : job.arenas) locks.push_back(lock_of(arena));
    remove_records(scope, job);
    const std::size_t arenas = options.records_only ? 0 : job.arenas.size();
    const std::uint64_t bytes = options.records_only ? 0 : remove_arenas(scope, job);
    result.text += options.records_only ? "removed the records of job " + job.name + "; its memory stays\n"
                                        : "removed job " + job.name + ": " + std::to_string(arenas) + " arenas, " +
                                              human_bytes(bytes) + "\n";
    result.json["removed"].push_back({{"job", job.name}, {"arenas", arenas}, {"bytes", bytes}});
  }
  if (result.text.empty()) {
    if (!options.all) throw Failure(CKPT_ERR_INVALID, nothing_found(scope, "arena or record"));
    result.text = "there is nothing to remove\n";
  }
  return result;
}

}  // namespace ckpt::cli
