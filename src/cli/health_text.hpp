// Turns the agents' health verdicts into text for ckptctl, and finds the worst verdict of each job.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/agents.hpp"

namespace ckpt::cli {

// The verdict "not protected" for an arena whose agent did not give one. `why` says what happened.
nlohmann::json silent_agent(const Arena& arena, const std::string& why);
// The verdict "not protected" for a job without a running agent on this machine.
nlohmann::json no_agent(const std::string& job);

// Returns the worst verdict of each job, the worst job first. Of equally bad ones, takes that of the job's leader.
std::vector<nlohmann::json> worst_of_each_job(const std::vector<nlohmann::json>& verdicts);

// Returns one line for people. It begins with "protected", "degraded" or "not protected".
std::string headline(const nlohmann::json& verdict);

// Returns the exit status for the worst of the verdicts: 0 protected, 1 degraded, 2 not protected or no verdict.
int exit_status_of(const std::vector<nlohmann::json>& verdicts);

}  // namespace ckpt::cli
