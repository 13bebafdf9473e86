// What `ckptctl status` says of an agent's schedule. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ckpt::cli {

// Lines for people, of what the agent has under "schedule". Empty where that is null; fields that are missing are left
// out, for the agent may be of another version.
std::string schedule_text(const nlohmann::json& schedule);

}  // namespace ckpt::cli
