#include <algorithm>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "cli/commands.hpp"
#include "cli/health_text.hpp"
#include "cli/table.hpp"

namespace ckpt::cli {
namespace {

using nlohmann::json;

constexpr std::int64_t all_timeout_ms = 3000;   // for all agents together
constexpr std::int64_t least_timeout_ms = 200;  // for each agent

std::string ms_text(const json& ms) { return ms.is_number() ? human_ms(ms.get<double>()) : "unknown"; }

std::string of_wanted(const json& counts) { return counts.at("now").dump() + " of " + counts.at("wanted").dump(); }

std::string held_up_text(const json& by) {
  const json node = by.value("node", json(nullptr)), rank = by.value("rank", json(nullptr));
  std::string text = rank.is_null() ? "" : "rank " + rank.dump();
  if (!node.is_null()) text += std::string(text.empty() ? "" : " on ") + "node " + node.get<std::string>();
  return text;
}

// The lines after the first one.
std::string details(const json& verdict) {
  std::string text;
  const auto add = [&](const char* what, const std::string& value) {
    if (!value.empty()) text += "  " + std::string(what) + ": " + value + "\n";
  };
  if (verdict.value("since", json(nullptr)).is_string())
    add("since", verdict.at("since").get<std::string>() + " (" + ms_text(verdict.at("since_ms")) + ")");
  if (verdict.at("at_risk_ms").is_number())
    add("at risk", verdict.at("at_risk_iterations").dump() + " iterations, " + ms_text(verdict.at("at_risk_ms")) +
                       " of work; a commit is due every " + ms_text(verdict.at("allowed_ms")));
  if (const json& committed = verdict.at("committed"); !committed.is_null())
    add("newest commit",
        "iteration " + committed.at("iteration").dump() + " of incarnation " + committed.at("incarnation").dump());
  else
    add("newest commit", "none");
  if (verdict.at("copies").is_object()) add("copies", of_wanted(verdict.at("copies")));
  if (verdict.at("parity").is_object() && verdict.at("parity").at("wanted") != 0)
    add("losses that parity survives", of_wanted(verdict.at("parity")));
  if (const json slowest = verdict.value("slowest", json(nullptr)); !slowest.is_null())
    add("slowest in that commit", slowest.at("part").get<std::string>() + ", last on node " +
                                      slowest.at("node").get<std::string>() + ", " + ms_text(slowest.at("ms")));
  if (const json& by = verdict.at("held_up_by"); !by.is_null()) add("held up by", held_up_text(by));
  add("what to do", verdict.value("advice", ""));
  return text;
}

}  // namespace

Result health(const Scope& scope) {
  const Deadline deadline = Deadline::in_ms(all_timeout_ms);
  std::vector<json> verdicts;
  std::vector<std::string> jobs;
  for (const Arena& arena : find_arenas(scope)) {
    jobs.push_back(arena.job);
    if (!arena.has_agent()) continue;
    try {
      const std::int64_t timeout_ms = std::max<std::int64_t>(deadline.remaining_ms(), least_timeout_ms);
      verdicts.push_back(ask(arena, {{"type", "health"}}, timeout_ms).body.at("health"));
    } catch (const std::exception& failure) {
      verdicts.push_back(silent_agent(arena, failure.what()));
    }
  }
  // No agent that answers says that the job is protected, so it is not known to be.
  if (jobs.empty() && !scope.job.empty()) jobs.push_back(scope.job);
  for (const std::string& job : jobs) {
    const bool is_notified = std::any_of(verdicts.begin(), verdicts.end(),
                                         [&](const json& verdict) { return verdict.value("job", "") == job; });
    if (!is_notified) verdicts.push_back(no_agent(job));
  }
  if (verdicts.empty()) throw Failure(CKPT_ERR_NO_AGENT, nothing_found(scope, "arena"));
  const auto worst = worst_of_each_job(verdicts);
  Result result;
  for (const json& verdict : worst) result.text += headline(verdict) + "\n" + details(verdict);
  result.json = worst.size() == 1 ? worst.front() : json{{"jobs", worst}};
  result.exit_status = exit_status_of(worst);
  return result;
}

}  // namespace ckpt::cli
