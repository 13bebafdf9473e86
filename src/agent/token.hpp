// Finds the job's token.
#pragma once

#include <string>

#include "options/options.hpp"
#include "coord/store.hpp"

namespace ckpt::agent {

// Returns the token in the file that the option token_file names. Without that option, returns the token in the store.
// If the store has none, writes one there: the one this node remembers, or a new one. Throws Failure.
std::string find_token(const Options& options, coord::Store& store, const std::string& remembered = "");

}  // namespace ckpt::agent
