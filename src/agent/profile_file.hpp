// Stores the profile of a rank's communication in the arena, so that a later incarnation of the rank on this node need
// not learn it again.
#pragma once

#include <optional>
#include <string>

#include "core/types.hpp"
#include "schedule/profile.hpp"

namespace ckpt::agent {

std::string to_text(const schedule::Profile& profile);
// Returns nothing if the text is not a valid profile: anybody could have written the file.
std::optional<schedule::Profile> profile_from(const std::string& text);

// The file is <directory>/rank-<rank>.profile. If it cannot be written or read, the profile is learned again.
void save_profile(const std::string& directory, core::Rank rank, const schedule::Profile& profile);
std::optional<schedule::Profile> load_profile(const std::string& directory, core::Rank rank);

}  // namespace ckpt::agent
