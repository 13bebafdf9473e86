// Writes the lines of `ckptctl status` that say when an agent sends chunks, and what it has learned of training's
// communication. Pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ckpt::cli {

// Formats the field "schedule" of an agent's status for people. Returns "" if the field is null. Leaves out what the
// agent does not report, because the agent may be of another version.
std::string schedule_text(const nlohmann::json& schedule);

}  // namespace ckpt::cli
