// Whether a directory can be trusted with a job's secrets, and making one that can. Free functions; thread-safe.
#pragma once

#include <cstddef>
#include <string>

namespace ckpt {

// Throws Failure where somebody else could have made or could change it: it has to be a directory of this user or of
// root, not open to everybody's writing unless sticky as /tmp is. `option` is what names it.
void require_own_directory(const std::string& path, const char* option);

// Makes `path` and what is missing on the way to it, with mode 0700. Nothing is made beyond a directory that fails its
// check, nor behind a link of another user: `path` and the `parents` directories above it have to be what
// require_own_directory() requires. Each directory is opened, looked at and made in its opened parent, so that nobody
// can put another in its place in between. Throws Failure.
void make_own_directory(const std::string& path, const char* option, std::size_t parents);

}  // namespace ckpt
