// What the agents of a running job have measured, as inputs of a plan, and what the plan would change.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "placement/odds/planner/planner.hpp"

namespace ckpt::cli {

// What agents report of one job. Pure data: `statuses` are the answers to `ckptctl status`.
struct JobReport {
  std::string job;
  std::vector<nlohmann::json> statuses;
};
// Asks the agents in scope. Throws Failure if none answers, or if they are of several jobs.
JobReport ask_job(const Scope& scope);

struct JobFindings {
  planner::Inputs inputs;
  placement::Protection protection;
  std::uint32_t own_slots = 2;
  bool has_storage = false;
  std::vector<std::string> measured;  // a line each
  std::vector<std::string> assumed;   // names of inputs that nobody measured
};
// Completes `inputs` with what the agents know. What the command line gave stays: `is_given` says so by option name.
// Throws Failure if the agents have no ranks, so that nothing is known.
JobFindings job_findings(const JobReport& report, const planner::Inputs& inputs,
                         const std::function<bool(const char*)>& is_given);

// The options that the plan would change, with what that brings. "" for one that stays.
struct JobChange {
  std::string option;
  std::string now;
  std::string then;
};
struct JobComparison {
  double effective_time_now = 0;
  std::vector<JobChange> changes;
};
JobComparison compare_job(const JobFindings& findings, const planner::Plan& plan);

std::string job_text(const JobReport& report, const JobFindings& findings, const JobComparison& comparison,
                     const planner::Plan& plan);
nlohmann::json job_json(const JobReport& report, const JobFindings& findings, const JobComparison& comparison);

}  // namespace ckpt::cli
