#include "cli/plan/plan_job.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "cli/plan/byte_count.hpp"
#include "cli/plan/plan_figures.hpp"
#include "cli/plan/plan_numbers.hpp"

namespace ckpt::cli {
namespace {

using nlohmann::json;
using planner::Inputs;

// The largest whole piece of each segment that trainers of this agent write.
double captured_bytes(const json& status) {
  double sum = 0;
  for (const json& segment : status.at("segments")) {
    if (segment.at("kind") != "local") continue;
    double largest = 0;
    for (const json& slot : segment.at("slots")) largest = std::max(largest, slot.at("bytes").get<double>());
    sum += largest > 0 ? largest : segment.at("slot_capacity_bytes").get<double>();
  }
  return sum;
}

// Of all ranks here, or 0 where no rank has reported it.
double largest_of_ranks(const json& status, const char* name) {
  double largest = 0;
  const json schedule = status.value("schedule", json());
  if (!schedule.is_object()) return 0;
  for (const json& rank : schedule.at("ranks"))
    if (rank.at("state") == "learned") largest = std::max(largest, rank.value(name, 0.0));
  return largest;
}

double link_bytes_per_s(const json& status) {
  const json schedule = status.value("schedule", json());
  const json link = schedule.is_object() ? schedule.value("link", json()) : json();
  return link.is_object() ? link.value("bytes_per_s", 0.0) : 0;
}

double most(const JobReport& report, const std::function<double(const json&)>& figure) {
  double largest = 0;
  for (const json& status : report.statuses) largest = std::max(largest, figure(status));
  return largest;
}

// Nodes with agents here whose ranks name the same main shard. All nodes, if it is the shard of all ranks.
std::uint32_t replicas_of(const JobReport& report, std::uint32_t nodes) {
  std::map<std::string, std::set<std::string>> nodes_of;
  for (const json& status : report.statuses)
    for (const json& rank : status.at("ranks"))
      nodes_of[rank.at("main_shard")].insert(status.at("node").get<std::string>());
  std::size_t found = 1;
  for (const auto& [shard, holders] : nodes_of)
    found = std::max(found, shard == "all_ranks" ? std::size_t{nodes} : holders.size());
  return static_cast<std::uint32_t>(std::min<std::size_t>(found, nodes));
}

// The leader knows which nodes are there; other agents know who has registered. Standby nodes have no ranks.
double nodes_with_ranks(const JobReport& report) {
  double leader_sees = 0, registered = 0, here = 0, standby = 0;
  for (const json& status : report.statuses) {
    if (status.value("is_leader", false)) leader_sees = double(status.at("nodes_present").size());
    registered = std::max(registered, double(status.value("nodes", json::array()).size()));
    (status.at("ranks").empty() ? standby : here) += 1;
  }
  return std::max(here, (leader_sees > 0 ? leader_sees : registered) - standby);
}

class Finder {
 public:
  Finder(const JobReport& report, const Inputs& inputs, const std::function<bool(const char*)>& is_given)
      : report_(report), is_given_(is_given) {
    found_.inputs = inputs;
  }

  JobFindings find() {
    const json& first = report_.statuses.front();
    found_.protection = placement::protection_named(first.at("protection").get<std::string>());
    found_.has_storage = first.at("storage").is_object();
    find_nodes();
    find_slots();
    find_state();
    find_times();
    take("memory", found_.inputs.cluster.memory_bytes_per_node, memory_bytes(), decimal_bytes);
    for (const char* name : {"detection", "restart", "storage-rate", "pcie", "mtbf"})
      if (!is_given_(name)) found_.assumed.emplace_back(name);
    return found_;
  }

 private:
  template <class To>
  void take(const char* name, To& to, double value, std::string (*text)(double)) {
    if (is_given_(name)) return;
    if (!(value > 0)) {
      found_.assumed.emplace_back(name);
      return;
    }
    to = static_cast<To>(value);
    found_.measured.push_back(std::string(name) + " " + text(value));
  }

  void find_nodes() {
    const double ranks = most(report_, [](const json& status) { return double(status.at("ranks").size()); });
    if (ranks == 0)
      throw Failure(CKPT_ERR_INVALID,
                    "the agents of job " + report_.job +
                        " have no ranks, so nothing is measured yet; start the trainers and ask again");
    take("gpus-per-node", found_.inputs.cluster.gpus_per_node, ranks, grouped);
    take("gpus", found_.inputs.cluster.gpus, found_.inputs.cluster.gpus_per_node * nodes_with_ranks(report_), grouped);
  }

  void find_slots() {
    double slots = 0;
    for (const json& status : report_.statuses)
      for (const json& rank : status.at("ranks"))
        if (const json own = rank.value("own_slots", json()); own.is_object())
          slots = std::max(slots, own.value("count", 0.0));
    // With storage, one of them is for storage.
    if (slots > 0) found_.own_slots = static_cast<std::uint32_t>(std::max(2.0, slots - (found_.has_storage ? 1 : 0)));
  }

  void find_state() {
    Inputs& in = found_.inputs;
    const std::uint32_t nodes = in.cluster.nodes();
    take("replicas", in.job.replicas, replicas_of(report_, nodes), grouped);
    // Each part of a shard that several nodes hold is captured by as many of them as there are copies.
    const double replicas = in.job.replicas;
    const double captured_share = std::min<double>(found_.protection.copies, replicas) / replicas;
    const double node_state = most(report_, captured_bytes) / captured_share;
    take("state", in.job.state_bytes, node_state * nodes / replicas, decimal_bytes);
  }

  void find_times() {
    Inputs& in = found_.inputs;
    double iteration_ms = most(report_, [](const json& status) { return largest_of_ranks(status, "iteration_ms"); });
    const double idle_ms = most(report_, [](const json& status) { return largest_of_ranks(status, "idle_ms"); });
    const double idle_share = iteration_ms > 0 ? std::min(1.0, idle_ms / iteration_ms) : 0;
    if (iteration_ms == 0)
      iteration_ms = most(report_, [](const json& status) { return status.at("health").value("iteration_ms", 0.0); });
    take("iteration", in.job.iteration_s, iteration_ms / 1000, duration);
    take("idle", in.job.idle_share, idle_share, percent);
    take("network", in.cluster.network_bytes_per_s, most(report_, link_bytes_per_s),
         [](double value) { return decimal_bytes(value) + "/s"; });
  }

  // What the arenas take, and what is left for them: of the node that has least.
  double memory_bytes() const {
    double least = planner::never_s;
    for (const json& status : report_.statuses) {
      const json& arena = status.at("arena");
      const double budget = arena.at("budget_bytes").get<double>();
      const double all = arena.at("bytes").get<double>() + arena.at("left_bytes").get<double>();
      least = std::min(least, budget > 0 ? std::min(budget, all) : all);
    }
    return std::isfinite(least) ? least : 0;
  }

  const JobReport& report_;
  const std::function<bool(const char*)>& is_given_;
  JobFindings found_;
};

std::string list_of(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
  return text;
}

}  // namespace

JobReport ask_job(const Scope& scope) {
  const auto arenas = find_arenas(scope);
  if (arenas.empty()) throw Failure(CKPT_ERR_NO_AGENT, nothing_found(scope, "arena"));
  JobReport report;
  std::string why = "no agent of the job runs here";
  for (const Arena& arena : arenas) {
    if (!arena.has_agent()) continue;
    if (!report.job.empty() && report.job != arena.job)
      throw Failure(CKPT_ERR_INVALID, "agents of the jobs " + report.job + " and " + arena.job +
                                          " run here, but a plan is for one job: name one with --job");
    report.job = arena.job;
    try {
      report.statuses.push_back(ask(arena, {{"type", "status"}}).body.at("agent"));
    } catch (const Failure& failure) {
      why = failure.what();
    } catch (const json::exception&) {
      why = not_understood(arena);
    }
  }
  if (report.statuses.empty()) throw Failure(CKPT_ERR_NO_AGENT, why);
  return report;
}

JobFindings job_findings(const JobReport& report, const Inputs& inputs,
                         const std::function<bool(const char*)>& is_given) {
  try {
    return Finder(report, inputs, is_given).find();
  } catch (const json::exception&) {
    throw Failure(CKPT_ERR_INVALID,
                  "the agents of job " + report.job +
                      " answer in a form that this ckptctl does not know; run ckptd and ckptctl of one version");
  }
}

JobComparison compare_job(const JobFindings& findings, const planner::Plan& plan) {
  JobComparison comparison;
  if (!plan.recommended) return comparison;
  const planner::Candidate& best = plan.rows[*plan.recommended];
  planner::Setting now = {planner::scheme_of(findings.protection), 1, best.setting.storage_every_s, findings.own_slots};
  if (!findings.has_storage) now.storage_every_s = planner::never_s;
  // What the nodes cannot give: they hold one copy.
  if (!why_not(findings.inputs, now.scheme).empty()) now.scheme = planner::scheme_of({1, 0, 0});
  const planner::Planner planner(findings.inputs, {now.scheme});
  comparison.effective_time_now = planner.candidate(findings.inputs, now).appraisal.effective_time;
  for (const auto& [key, value] : options_to_set(best)) {
    std::string before;
    if (key == "protection") before = placement::name(findings.protection);
    if (key == "own_slots") before = std::to_string(findings.own_slots);
    if (key == "storage_interval_s" && findings.has_storage) continue;  // agents do not report it
    if (key == "storage_interval_s") before = "no storage";
    if (before != value) comparison.changes.push_back({key, before, value});
  }
  return comparison;
}

std::string job_text(const JobReport& report, const JobFindings& findings, const JobComparison& comparison,
                     const planner::Plan& plan) {
  std::string text = "Job " + report.job + ", from " + std::to_string(report.statuses.size()) +
                     (report.statuses.size() == 1 ? " agent" : " agents") + ": protection " +
                     placement::name(findings.protection) + ", " + std::to_string(findings.own_slots) + " own slots, " +
                     (findings.has_storage ? "storage" : "no storage") + ".\n";
  text += "Measured: " + list_of(findings.measured) + ".\n";
  if (!findings.assumed.empty())
    text += "Not measured, so from the command line or the defaults: " + list_of(findings.assumed) + ".\n";
  if (!plan.recommended) return text + "\n";
  const double then = plan.rows[*plan.recommended].appraisal.effective_time;
  if (comparison.changes.empty()) return text + "The recommendation would change no option.\n\n";
  for (const JobChange& change : comparison.changes)
    text += "The recommendation would change " + change.option + " from " + change.now + " to " + change.then + ".\n";
  text += "Effective training time: " + percent(comparison.effective_time_now) + " now, " + percent(then) +
          " with the recommendation.";
  if (comparison.effective_time_now == 0 && !findings.has_storage)
    text += " Without storage, the job begins anew when memory is lost.";
  return text + "\n\n";
}

json job_json(const JobReport& report, const JobFindings& findings, const JobComparison& comparison) {
  json found = {{"job", report.job},
                {"agents", report.statuses.size()},
                {"protection", placement::name(findings.protection)},
                {"own_slots", findings.own_slots},
                {"storage", findings.has_storage},
                {"measured", findings.measured},
                {"assumed", findings.assumed},
                {"effective_time_now", comparison.effective_time_now},
                {"changes", json::array()}};
  for (const JobChange& change : comparison.changes)
    found["changes"].push_back({{"option", change.option}, {"now", change.now}, {"then", change.then}});
  return found;
}

}  // namespace ckpt::cli
