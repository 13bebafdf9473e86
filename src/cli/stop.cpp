#include <chrono>
#include <thread>

#include "base/error.hpp"
#include "cli/commands.hpp"

namespace ckpt::cli {
namespace {

constexpr std::int64_t end_timeout_ms = 15'000;
constexpr std::chrono::milliseconds look_interval{20};

bool ended(const Arena& arena) {
  const auto summary = arena::inspect_arena(arena.directory);
  return !summary || !summary->in_use;
}

bool wait_until_ended(const Arena& arena) {
  for (const Deadline deadline = Deadline::in_ms(end_timeout_ms); !deadline.passed();) {
    if (ended(arena)) return true;
    std::this_thread::sleep_for(look_interval);
  }
  return false;
}

}  // namespace

Result stop(const Scope& scope) {
  Result result;
  result.json = {{"stopped", nlohmann::json::array()}, {"failed", nlohmann::json::array()}};
  for (const Arena& arena : find_arenas(scope)) {
    if (!arena.has_agent()) continue;
    const std::string who = "the agent of node " + arena.node + " of job " + arena.job;
    nlohmann::json entry = {{"job", arena.job}, {"node", arena.node}};
    try {
      const auto pid = ask(arena, {{"type", "stop"}}).pid;
      if (!wait_until_ended(arena))
        throw Failure(
            CKPT_ERR_TIMEOUT,
            who + " (process " + std::to_string(pid) +
                ") was asked to end and has not ended; end it with SIGKILL. The checkpoints in its arena stay");
      entry["pid"] = pid;
      result.text += "stopped " + who + " (process " + std::to_string(pid) + ")\n";
      result.json["stopped"].push_back(entry);
    } catch (const Failure& failure) {
      entry["why"] = failure.what();
      result.text += std::string(failure.what()) + "\n";
      result.json["failed"].push_back(entry);
      result.good = false;
    }
  }
  if (result.text.empty()) throw Failure(CKPT_ERR_NO_AGENT, nothing_found(scope, "running agent"));
  return result;
}

}  // namespace ckpt::cli
