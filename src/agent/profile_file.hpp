// The profile of a rank's communication, kept in the arena: a later incarnation of the rank on this node need not learn
// it.
#pragma once

#include <optional>
#include <string>

#include "protocol/types.hpp"
#include "schedule/profile.hpp"

namespace ckpt::agent {

std::string to_text(const schedule::Profile& profile);
// Nothing where the text is no profile: anybody could have written the file.
std::optional<schedule::Profile> profile_from(const std::string& text);

// <directory>/rank-<rank>.profile. A file that cannot be written or read is done without: the profile is learned again.
void save_profile(const std::string& directory, protocol::Rank rank, const schedule::Profile& profile);
std::optional<schedule::Profile> load_profile(const std::string& directory, protocol::Rank rank);

}  // namespace ckpt::agent
