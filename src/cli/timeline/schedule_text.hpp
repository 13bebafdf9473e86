// What `ckptctl status` says about an agent's schedule. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ckpt::cli {

// Formats what the agent reports under "schedule" for people. Empty if that is null. Missing fields are left out, since
// the agent may be of another version.
std::string schedule_text(const nlohmann::json& schedule);

}  // namespace ckpt::cli
