// Whether compare-and-swap works in a directory: two handles contend for a record in it.
#pragma once

#include <string>

#include "coord/revision_files.hpp"

namespace ckpt::coord {

// What the file system of `directory` cannot do, in a sentence; "" where it can do all that is needed. Makes a scratch
// directory in there and removes it. It may hang where the file system does.
std::string what_fails_in(const std::string& directory, const RevisionHooks& hooks = {});

}  // namespace ckpt::coord
