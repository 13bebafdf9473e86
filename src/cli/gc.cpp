#include <fcntl.h>
#include <sys/file.h>

#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

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

// Why the job must not be touched, if it must not.
std::string alive(const std::vector<Arena>& arenas, const std::string& records) {
  for (const Arena& arena : arenas) {
    if (arena.has_agent()) return "its agent on node " + arena.node + " is running; end it first (ckptctl stop)";
    for (const agent::LivingTrainer& trainer : agent::living_trainers(arena.directory))
      return "a trainer of rank " + std::to_string(trainer.rank) + " on node " + arena.node +
             " is running; end it first";
  }
  const std::string before = root_record(records);
  if (before.empty()) return "";
  std::this_thread::sleep_for(watch_root);
  if (root_record(records) == before) return "";
  return "agents of it are running on other nodes; end them first (ckptctl stop, there)";
}

// Removes an arena under its lock, so that no agent attaches to half of it.
void remove_arena(const Arena& arena) {
  const UniqueFd lock(::open((arena.directory + "/node").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    throw Failure(CKPT_ERR_CLAIMED, "an agent has just taken the arena " + arena.directory + "; stop it first");
  fs::remove_all(arena.directory);
}

}  // namespace

Result gc(const Scope& scope, bool all) {
  if (scope.job.empty() && !all) throw Failure(CKPT_ERR_INVALID, "name the job (--job) or say --all");
  Result result;
  result.json = {{"removed", nlohmann::json::array()}, {"kept", nlohmann::json::array()}};
  for (const std::string& job : jobs_in({scope.arena_dir, scope.coordination, scope.job, ""})) {
    const auto arenas = find_arenas({scope.arena_dir, scope.coordination, job, ""});
    const std::string records = scope.coordination + "/" + job;
    if (const std::string why = alive(arenas, records); !why.empty()) {
      result.text += "job " + job + " is kept: " + why + "\n";
      result.json["kept"].push_back({{"job", job}, {"why", why}});
      result.good = all && result.good;
      continue;
    }
    std::uint64_t bytes = 0;
    try {
      for (const Arena& arena : arenas) {
        const std::uint64_t arena_bytes = directory_bytes(arena.directory);
        remove_arena(arena);
        bytes += arena_bytes;
      }
      std::error_code not_empty;
      fs::remove(scope.arena_dir + "/" + job, not_empty);
      fs::remove_all(records);
    } catch (const fs::filesystem_error& error) {
      throw Failure(CKPT_ERR_SYSTEM, std::string("cannot remove what job ") + job + " left: " + error.what());
    }
    result.text +=
        "removed job " + job + ": " + std::to_string(arenas.size()) + " arenas, " + human_bytes(bytes) + "\n";
    result.json["removed"].push_back({{"job", job}, {"arenas", arenas.size()}, {"bytes", bytes}});
  }
  if (result.text.empty()) {
    if (!all) throw Failure(CKPT_ERR_INVALID, nothing_found(scope, "arena or record"));
    result.text = "there is nothing to remove\n";
  }
  return result;
}

}  // namespace ckpt::cli
