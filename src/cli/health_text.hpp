// Verdicts on jobs, as agents tell them in JSON: which one counts, and how it reads.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/agents.hpp"

namespace ckpt::cli {

// What there is to say where no agent says anything.
nlohmann::json silent_agent(const Arena& arena, const std::string& why);
nlohmann::json no_agent(const std::string& job);

// By job. Of equally bad ones, that of the leader.
std::vector<nlohmann::json> worst_of_each_job(const std::vector<nlohmann::json>& verdicts);

// Begins with "protected", "degraded" or "not protected".
std::string headline(const nlohmann::json& verdict);

// 0 protected, 1 degraded, 2 not protected; of several jobs the worst.
int exit_status_of(const std::vector<nlohmann::json>& verdicts);

}  // namespace ckpt::cli
