// Where an agent has the job's token from.
#pragma once

#include <string>

#include "base/options.hpp"
#include "coord/store.hpp"

namespace ckpt::agent {

// What the file says that the option token_file names; without it, what the store says, which is made there if need be:
// the one that this node remembers, if any. Throws Failure.
std::string find_token(const Options& options, coord::Store& store, const std::string& remembered = "");

}  // namespace ckpt::agent
