// Turns the agents' health verdicts into text for ckptctl, and finds the worst verdict of each job.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/agents.hpp"

namespace ckpt::cli {

// The verdict when an agent says nothing.
nlohmann::json silent_agent(const Arena& arena, const std::string& why);
nlohmann::json no_agent(const std::string& job);

// The worst verdict of each job. If several are equally bad, the leader's.
std::vector<nlohmann::json> worst_of_each_job(const std::vector<nlohmann::json>& verdicts);

// Begins with "protected", "degraded" or "not protected".
std::string headline(const nlohmann::json& verdict);

// 0 protected, 1 degraded, 2 not protected; the worst of several jobs.
int exit_status_of(const std::vector<nlohmann::json>& verdicts);

}  // namespace ckpt::cli
