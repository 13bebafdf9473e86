#include "cli/health_text.hpp"

#include <algorithm>

#include "cli/table.hpp"

namespace ckpt::cli {
namespace {

using nlohmann::json;

int badness(const json& verdict) {
  const std::string state = verdict.value("state", "");
  return state == "protected" ? 0 : state == "degraded" ? 1 : 2;
}

bool is_of_the_leader(const json& verdict) {
  const auto leader = verdict.find("leader");
  return leader != verdict.end() && leader->is_string() && *leader == verdict.at("reported_by");
}

json unknown(const std::string& job, const std::string& reason, const std::string& text, const std::string& advice) {
  return {{"job", job},
          {"state", "not protected"},
          {"reason", reason},
          {"text", text},
          {"advice", advice},
          {"since", nullptr},
          {"since_ms", nullptr},
          {"held_up_by", nullptr},
          {"at_risk_ms", nullptr},
          {"at_risk_iterations", nullptr},
          {"allowed_ms", nullptr},
          {"iteration_ms", nullptr},
          {"committed", nullptr},
          {"copies", nullptr},
          {"parity", nullptr},
          {"slowest", nullptr},
          {"reported_by", nullptr},
          {"leader", nullptr}};
}

}  // namespace

json silent_agent(const Arena& arena, const std::string& why) {
  json verdict = unknown(arena.job, "agent_silent", why, "resume it (SIGCONT), or end it and start it again");
  verdict["reported_by"] = arena.node;
  verdict["held_up_by"] = {{"node", arena.node}, {"rank", nullptr}};
  return verdict;
}

json no_agent(const std::string& job) {
  return unknown(job, "no_agent", "no agent of job " + job + " answers on this machine",
                 "ask on a machine of the job, or start its agents");
}

std::vector<json> worst_of_each_job(const std::vector<json>& verdicts) {
  std::vector<json> worst;
  for (const json& verdict : verdicts) {
    const auto same = std::find_if(worst.begin(), worst.end(),
                                   [&](const json& other) { return other.at("job") == verdict.at("job"); });
    if (same == worst.end())
      worst.push_back(verdict);
    else if (badness(verdict) > badness(*same) ||
             (badness(verdict) == badness(*same) && is_of_the_leader(verdict) && !is_of_the_leader(*same)))
      *same = verdict;
  }
  std::stable_sort(worst.begin(), worst.end(), [](const json& a, const json& b) { return badness(a) > badness(b); });
  return worst;
}

std::string headline(const json& verdict) {
  const std::string state = verdict.at("state"), text = verdict.value("text", "");
  const std::string job = "job " + verdict.value("job", "");
  const json committed = verdict.value("committed", json(nullptr));
  if (!text.empty()) return state + ": " + job + ": " + text;
  if (committed.is_null()) return state + ": " + job;
  return state + ": " + job + " committed iteration " + committed.at("iteration").dump() + " of incarnation " +
         committed.at("incarnation").dump() + " " + human_ms(verdict.value("at_risk_ms", 0.0)) + " ago";
}

int exit_status_of(const std::vector<json>& verdicts) {
  int worst = verdicts.empty() ? 2 : 0;
  for (const json& verdict : verdicts) worst = std::max(worst, badness(verdict));
  return worst;
}

}  // namespace ckpt::cli
