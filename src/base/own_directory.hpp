// Whether a directory can be trusted with a job's secrets. Free function; thread-safe.
#pragma once

#include <string>

namespace ckpt {

// Throws Failure where somebody else could have made or could change it: it has to be a directory of this user or of
// root, not open to everybody's writing unless sticky as /tmp is. `option` is what names it.
void require_own_directory(const std::string& path, const char* option);

}  // namespace ckpt
