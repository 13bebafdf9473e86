// Writes the lines of `ckptctl status` that say when an agent sends chunks, and what it has learned of training's
// communication. Pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ckpt::cli {

// Formats what the agent reports under "schedule" for people. "" if that is null. Leaves out missing fields, because
// the agent may be of another version.
std::string schedule_text(const nlohmann::json& schedule);

}  // namespace ckpt::cli
