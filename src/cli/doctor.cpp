#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "arena/space_left.hpp"
#include "base/error.hpp"
#include "base/unique_fd.hpp"
#include "cli/commands.hpp"
#include "cli/findings.hpp"
#include "cli/health_text.hpp"
#include "cli/table.hpp"
#include "coord/bounded_store.hpp"
#include "coord/mount_check.hpp"
#include "coord/open_store.hpp"

namespace ckpt::cli {
namespace {

namespace fs = std::filesystem;

// The directory itself or, if it does not exist yet, the one in which it would be made.
std::string existing_part(const std::string& directory) {
  fs::path path = directory;
  while (!path.empty() && !fs::exists(path) && path.has_relative_path()) path = path.parent_path();
  return path.string();
}

Finding shared_memory(const Scope& scope) {
  constexpr long tmpfs_magic = 0x01021994;
  constexpr std::uint64_t small_bytes = std::uint64_t{1} << 30;
  const std::string subject = "shared memory", where = existing_part(scope.arena_dir);
  struct statfs info {};
  if (::statfs(where.c_str(), &info) != 0)
    return {
        Health::bad, subject,
        "cannot stat " + where + ": " + std::strerror(errno) + "; set the option arena_dir to a directory in /dev/shm"};
  if (info.f_type != tmpfs_magic)
    return {Health::bad, subject,
            scope.arena_dir + " does not lie in memory (tmpfs); set the option arena_dir to a directory in /dev/shm"};
  const std::uint64_t size = std::uint64_t{info.f_blocks} * static_cast<std::uint64_t>(info.f_bsize);
  const std::uint64_t left = arena::space_left_bytes(where);
  const std::string text = human_bytes(left) + " can be used of " + human_bytes(size) + " in " + where;
  if (left >= small_bytes) return {Health::good, subject, text};
  return {Health::warning, subject,
          text + "; enlarge it (mount -o remount,size=..., or --shm-size of the container) if the state does not fit"};
}

Finding coordination_directory(const std::string& at) {
  const std::string where = existing_part(at);
  if (::access(where.c_str(), R_OK | W_OK | X_OK) != 0)
    return {Health::bad, "coordination",
            "cannot write in " + where + ": " + std::strerror(errno) +
                "; make it writable for this user, or set the option coordination to another directory"};
  if (const std::string failure = coord::what_fails_in(where); !failure.empty())
    return {Health::bad, "coordination", failure};
  const std::string local = coord::local_file_system(where);
  return {
      Health::good, "coordination",
      at + " can be written, and of two writers that write one record at once only one succeeds" +
          (local.empty() ? "" : "; no other machine sees it (" + local + "), so all nodes must be on this machine")};
}

Finding coordination(const Scope& scope) {
  const std::string& at = scope.coordination.at;
  if (scope.coordination.is_etcd()) try {
      const std::size_t jobs = coord::jobs_with_records(scope.coordination).size();
      return {Health::good, "coordination", at + " answers, and has records of " + std::to_string(jobs) + " jobs"};
    } catch (const Failure& failure) {
      return {Health::bad, "coordination", failure.what()};
    }
  try {
    return coord::within(scope.coordination.timeout_ms(), at, [at] { return coordination_directory(at); });
  } catch (const Failure& failure) {
    return {Health::bad, "coordination", failure.what()};
  }
}

// Findings about an agent that answers with this status.
Finding agent_finding(const std::string& subject, const std::string& bytes, const nlohmann::json& status) {
  const std::string text = "agent " + status.at("pid").dump() + " answers, " + bytes;
  if (const std::string trouble = status.value("coordination_trouble", ""); !trouble.empty())
    return {Health::bad, subject, text + "; until this is repaired, the job cannot decide a restore: " + trouble};
  if (const std::string doubt = status.value("coordination_doubt", ""); !doubt.empty())
    return {Health::bad, subject, text + "; it waits for ranks that have not called restore(): " + doubt};
  const nlohmann::json storage = status.value("storage", nlohmann::json(nullptr));
  if (const std::string trouble = storage.is_null() ? "" : storage.value("trouble", ""); !trouble.empty())
    return {Health::bad, subject, text + "; storage fails: " + trouble};
  if (const std::string alarm = status.at("alarm"); !alarm.empty()) return {Health::bad, subject, text + "; " + alarm};
  const nlohmann::json verdict = status.value("health", nlohmann::json(nullptr));
  // After a job has ended, it has agents and no trainers; its commits are kept.
  const bool has_trainers = verdict.is_object() && verdict.value("reason", "") != "no_trainers";
  if (has_trainers && verdict.value("state", "") == "not protected")
    return {Health::bad, subject, text + "; " + headline(verdict) + "; " + verdict.value("advice", "")};
  if (has_trainers && verdict.value("reason", "") == "other_protection")
    return {Health::warning, subject, text + "; " + verdict.value("text", "") + "; " + verdict.value("advice", "")};
  const bool has_copies = status.at("copies_now") >= status.at("copies");
  const bool has_parity = status.at("parity_now") >= status.at("parity");
  if (status.at("committed").is_null() || (has_copies && has_parity)) return {Health::good, subject, text};
  if (has_copies)
    return {Health::warning, subject,
            text + "; the newest commit survives " + status.at("parity_now").dump() + " of " +
                status.at("parity").dump() + " losses in a parity group, until more nodes take part"};
  return {Health::warning, subject,
          text + "; the newest commit has " + status.at("copies_now").dump() + " of " + status.at("copies").dump() +
              " copies, until more nodes take part"};
}

std::vector<Finding> arenas(const Scope& scope) {
  std::vector<Finding> findings;
  for (const Arena& arena : find_arenas(scope)) {
    const std::string subject = "arena " + arena.job + "/" + arena.node;
    const std::string bytes = human_bytes(directory_bytes(arena.directory));
    if (!arena.summary) {
      findings.push_back({Health::warning, subject,
                          arena.directory + " is not an arena of this version (" + bytes + "); ckptctl gc removes it"});
    } else if (!arena.summary->in_use) {
      findings.push_back({Health::warning, subject,
                          "no agent, " + bytes +
                              ": kept for the job's next start; if the job is over, ckptctl gc --job " + arena.job +
                              " frees it"});
    } else {
      try {
        findings.push_back(agent_finding(subject, bytes, ask(arena, {{"type", "status"}}).body.at("agent")));
      } catch (const Failure& failure) {
        findings.push_back({Health::bad, subject, failure.what()});
      } catch (const nlohmann::json::exception&) {
        findings.push_back({Health::bad, subject, not_understood(arena)});
      }
    }
  }
  return findings;
}

Finding open_files() {
  constexpr rlim_t enough = 1024;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const std::string text = std::to_string(limit.rlim_cur) + " files can be open at once";
  if (limit.rlim_cur >= enough) return {Health::good, "open files", text};
  return {Health::warning, "open files", text + "; raise it to 1024 or more (ulimit -n)"};
}

Finding locked_memory() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return {Health::good, "locked memory", "no limit"};
  return {Health::good, "locked memory",
          human_bytes(limit.rlim_cur) + "; networks with remote memory access and GPUs want no limit (ulimit -l)"};
}

Finding pidfds() {
  const UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (self) return {Health::good, "kernel", "can tell agents when a process has exited (pidfd_open)"};
  return {Health::bad, "kernel",
          std::string("pidfd_open fails: ") + std::strerror(errno) + "; Linux 5.3 or newer is needed"};
}

const char* word(Health health) {
  return health == Health::good ? "ok" : health == Health::warning ? "warning" : "BAD";
}

}  // namespace

Result doctor(const Scope& scope, const StorageScope& storage) {
  std::vector<Finding> findings = {shared_memory(scope), coordination(scope), open_files(), locked_memory(), pidfds()};
  for (Finding& finding : arenas(scope)) findings.push_back(std::move(finding));
  if (!storage.location.empty())
    for (Finding& finding : storage_findings(storage)) findings.push_back(std::move(finding));
  Result result;
  std::vector<Row> rows;
  result.json = {{"findings", nlohmann::json::array()}};
  for (const Finding& finding : findings) {
    rows.push_back({word(finding.health), finding.subject, finding.text});
    result.json["findings"].push_back(
        {{"health", word(finding.health)}, {"subject", finding.subject}, {"text", finding.text}});
    result.good = result.good && finding.health != Health::bad;
  }
  result.text = table(rows);
  return result;
}

}  // namespace ckpt::cli
