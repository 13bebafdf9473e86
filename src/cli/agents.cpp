#include "cli/agents.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.hpp"

namespace ckpt::cli {
namespace {

namespace fs = std::filesystem;

// Skips links, because their targets belong to others.
std::vector<fs::path> subdirectories(const fs::path& directory) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
    if (fs::is_directory(entry->symlink_status(error))) found.push_back(entry->path());
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::vector<Arena> find_arenas(const Scope& scope) {
  std::vector<Arena> arenas;
  for (const fs::path& job : subdirectories(scope.arena_dir)) {
    if (!scope.job.empty() && job.filename() != scope.job) continue;
    for (const fs::path& node : subdirectories(job)) {
      if (!scope.node.empty() && node.filename() != scope.node) continue;
      if (!arena::is_arena(node.string())) continue;
      arenas.push_back(
          {job.filename().string(), node.filename().string(), node.string(), arena::inspect_arena(node.string())});
    }
  }
  return arenas;
}

std::string nothing_found(const Scope& scope, const char* what) {
  std::set<std::string> jobs;
  for (const Arena& arena : find_arenas({scope.arena_dir, scope.coordination, "", ""})) jobs.insert(arena.job);
  std::string text = std::string("there is no ") + what;
  if (!scope.job.empty()) text += " of job " + scope.job;
  if (!scope.node.empty()) text += " and node " + scope.node;
  text += " in " + scope.arena_dir;
  if (jobs.empty()) return text + "; if the arenas are in another directory, name it with the option arena_dir";
  std::string names;
  for (const std::string& job : jobs) names += (names.empty() ? "" : ", ") + job;
  return text + "; the jobs there are: " + names;
}

Answer ask(const Arena& arena, const nlohmann::json& request, std::int64_t timeout_ms) {
  FrameSocket socket = FrameSocket::connect(arena.directory + "/agent.sock");
  Answer answer;
  answer.pid = socket.peer().pid;
  try {
    const Deadline deadline = Deadline::in_ms(timeout_ms);
    socket.send(request, {}, deadline);
    answer.body = socket.receive(deadline).body;
  } catch (const Failure& failure) {
    if (failure.status() != CKPT_ERR_TIMEOUT) throw;
    throw Failure(CKPT_ERR_TIMEOUT, "the agent of node " + arena.node + " of job " + arena.job + " (process " +
                                        std::to_string(answer.pid) +
                                        ") does not answer. If it is stopped, resume it (SIGCONT); otherwise end it "
                                        "(SIGKILL). The checkpoints in its arena stay");
  }
  if (const int status = answer.body.value("status", static_cast<int>(CKPT_ERR_INTERNAL)); status != CKPT_OK)
    throw Failure(static_cast<ckpt_status>(status),
                  answer.body.value("message", "the agent refused the request and gave no reason; see its log"));
  return answer;
}

std::string not_understood(const Arena& arena) {
  return "ckptctl does not understand the answer of the agent of node " + arena.node + " of job " + arena.job +
         "; run ckptd and ckptctl of one version (--version tells it)";
}

std::uint64_t directory_bytes(const std::string& directory) {
  std::uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    struct stat file {};
    if (::lstat(entry->path().c_str(), &file) == 0) bytes += static_cast<std::uint64_t>(file.st_blocks) * 512;
  }
  return bytes;
}

}  // namespace ckpt::cli
