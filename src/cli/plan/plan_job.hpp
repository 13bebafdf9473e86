// Makes inputs of a plan from what the agents of a running job have measured, and says what the plan would change.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "placement/odds/planner/planner.hpp"

namespace ckpt::cli {

// What the agents of one job report. `statuses` are their answers to the request "status", one per agent.
struct JobReport {
  std::string job;
  std::vector<nlohmann::json> statuses;
};
// Asks the agents in scope. Throws Failure if none answers, or if they are of several jobs.
JobReport ask_job(const Scope& scope);

struct JobFindings {
  planner::Inputs inputs;
  placement::Protection protection;
  std::uint32_t own_slots = 2;  // as the option of this name: the slot that a rank gets for storage does not count
  bool has_storage = false;
  std::vector<std::string> measured;  // what was measured, for people; one item each
  std::vector<std::string> assumed;   // names of the inputs that no agent measured
};
// Completes `inputs` with what the agents know. Keeps each input that the command line gave; `is_given` says which, by
// the option's name. Throws Failure if the agents have no ranks, because then they have measured nothing.
JobFindings job_findings(const JobReport& report, const planner::Inputs& inputs,
                         const std::function<bool(const char*)>& is_given);

// An option that the plan would change.
struct JobChange {
  std::string option;  // its name
  std::string now;     // the job's present value
  std::string then;    // the plan's value
};
// The running job beside the row that the plan recommends.
struct JobComparison {
  double effective_time_now = 0;  // share of the time in which the job makes lasting progress, with its present options
  std::vector<JobChange> changes;
};
JobComparison compare_job(const JobFindings& findings, const planner::Plan& plan);

std::string job_text(const JobReport& report, const JobFindings& findings, const JobComparison& comparison,
                     const planner::Plan& plan);
nlohmann::json job_json(const JobReport& report, const JobFindings& findings, const JobComparison& comparison);

}  // namespace ckpt::cli
