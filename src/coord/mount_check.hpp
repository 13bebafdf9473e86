// Checks whether compare-and-swap works in a directory: two handles compete for a record in it.
#pragma once

#include <string>

#include "coord/revision_files.hpp"

namespace ckpt::coord {

// Says in a sentence what the file system of `directory` cannot do; "" if it can do all that is needed. Makes a scratch
// directory there and removes it. May hang if the file system hangs.
std::string what_fails_in(const std::string& directory, const RevisionHooks& hooks = {});

}  // namespace ckpt::coord
