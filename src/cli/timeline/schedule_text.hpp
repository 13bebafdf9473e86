// The text of `ckptctl status` about an agent's schedule. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ckpt::cli {

// Formats what the agent reports under "schedule" for people. "" if that is null. Leaves out missing fields, because
// the agent may be of another version.
std::string schedule_text(const nlohmann::json& schedule);

}  // namespace ckpt::cli
