#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>
#include <vector>

#include "agent/claims.hpp"
#include "base/error.hpp"
#include "base/unique_fd.hpp"
#include "cli/commands.hpp"
#include "cli/table.hpp"
#include "coord/directory_store.hpp"

namespace ckpt::cli {
namespace {

namespace fs = std::filesystem;

// A root renews its record every lease_ms / 4, 500 ms unless options say otherwise.
constexpr std::chrono::milliseconds watch_root{1500};

std::set<std::string> jobs_in(const Scope& scope) {
  std::set<std::string> jobs;
  for (const Arena& arena : find_arenas(scope)) jobs.insert(arena.job);
  std::error_code error;
  for (fs::directory_iterator entry(scope.coordination, error), end; !error && entry != end; entry.increment(error))
    if (entry->is_directory(error) && fs::exists(entry->path() / "ids") &&
        (scope.job.empty() || entry->path().filename() == scope.job))
      jobs.insert(entry->path().filename().string());
  return jobs;
}

std::string root_record(const std::string& directory) {
  if (!fs::exists(directory)) return "";
  try {
    const auto entry = coord::DirectoryStore(directory).get("root");
    return entry ? entry->value : "";
  } catch (const Failure&) {
    return "";  // damaged: nobody renews it
  }
}

struct Job {
  std::string name;
  std::vector<Arena> arenas;
  std::string records;  // their directory
  std::string root;     // the record as it was first seen
  std::string why;      // it must not be touched; "" if it may be
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

// Looks at the jobs that nothing here speaks for, all at once, for as long as a living root would need to show itself.
std::vector<Job> look_at_jobs(const Scope& scope) {
  std::vector<Job> jobs;
  for (const std::string& name : jobs_in(scope)) {
    Job job{name, find_arenas({scope.arena_dir, scope.coordination, name, ""}), scope.coordination + "/" + name, "",
            ""};
    job.why = alive_here(job.arenas);
    if (job.why.empty()) job.root = root_record(job.records);
    jobs.push_back(std::move(job));
  }
  if (std::all_of(jobs.begin(), jobs.end(), [](const Job& job) { return job.root.empty(); })) return jobs;
  std::this_thread::sleep_for(watch_root);
  for (Job& job : jobs)
    if (!job.root.empty() && root_record(job.records) != job.root)
      job.why = "agents of it are running on other nodes; end them first (ckptctl stop, there)";
  return jobs;
}

// Removes an arena under its lock, so that no agent attaches to half of it.
void remove_arena(const Arena& arena) {
  const UniqueFd lock(::open((arena.directory + "/node").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    throw Failure(CKPT_ERR_CLAIMED, "an agent has just taken the arena " + arena.directory + "; stop it first");
  fs::remove_all(arena.directory);
}

// The bytes that were freed.
std::uint64_t remove_job(const Scope& scope, const Job& job) {
  std::uint64_t bytes = 0;
  try {
    for (const Arena& arena : job.arenas) {
      const std::uint64_t arena_bytes = directory_bytes(arena.directory);
      remove_arena(arena);
      bytes += arena_bytes;
    }
    std::error_code not_empty;
    fs::remove(scope.arena_dir + "/" + job.name, not_empty);
    fs::remove_all(job.records);
  } catch (const fs::filesystem_error& error) {
    throw Failure(CKPT_ERR_SYSTEM, "cannot remove what job " + job.name + " left: " + error.what());
  }
  return bytes;
}

}  // namespace

Result gc(const Scope& scope, bool all) {
  if (scope.job.empty() && !all) throw Failure(CKPT_ERR_INVALID, "name the job (--job) or say --all");
  Result result;
  result.json = {{"removed", nlohmann::json::array()}, {"kept", nlohmann::json::array()}};
  for (const Job& job : look_at_jobs({scope.arena_dir, scope.coordination, scope.job, ""})) {
    if (!job.why.empty()) {
      result.text += "job " + job.name + " is kept: " + job.why + "\n";
      result.json["kept"].push_back({{"job", job.name}, {"why", job.why}});
      result.good = all && result.good;
      continue;
    }
    const std::uint64_t bytes = remove_job(scope, job);
    result.text +=
        "removed job " + job.name + ": " + std::to_string(job.arenas.size()) + " arenas, " + human_bytes(bytes) + "\n";
    result.json["removed"].push_back({{"job", job.name}, {"arenas", job.arenas.size()}, {"bytes", bytes}});
  }
  if (result.text.empty()) {
    if (!all) throw Failure(CKPT_ERR_INVALID, nothing_found(scope, "arena or record"));
    result.text = "there is nothing to remove\n";
  }
  return result;
}

}  // namespace ckpt::cli
