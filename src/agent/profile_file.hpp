// Keeps in the arena what the agent has learned of a rank's communication. If the rank starts again on this node, the
// agent need not learn it again.
#pragma once

#include <optional>
#include <string>

#include "core/types.hpp"
#include "schedule/profile.hpp"

namespace ckpt::agent {

std::string to_text(const schedule::Profile& profile);
// Returns nothing if the text is not a valid profile. The text is not trusted, because any process of the user can
// write the file.
std::optional<schedule::Profile> profile_from(const std::string& text);

// Write and read the file <directory>/rank-<rank>.profile. A failure to write is ignored. load_profile() returns
// nothing if there is no valid file: then the scheduler learns the profile again.
void save_profile(const std::string& directory, core::Rank rank, const schedule::Profile& profile);
std::optional<schedule::Profile> load_profile(const std::string& directory, core::Rank rank);

}  // namespace ckpt::agent
