// Whether a directory can be trusted with a job's secrets, and making one that can. Free functions; thread-safe.
#pragma once

#include <cstddef>
#include <string>

namespace ckpt {

// Makes `path` and the missing directories above it, with mode 0700. Throws Failure if somebody else could have made or
// could change `path` or one of the `parents` directories above it: each must belong to this user or to root, and must
// not be open to everybody's writing, unless it is sticky as /tmp is. Makes nothing beyond a directory that fails this
// check, and nothing behind another user's link. Opens each directory through its opened parent, so that nobody can
// exchange one in between. `option` is the option that names the path, for the message.
void make_own_directory(const std::string& path, const char* option, std::size_t parents);

}  // namespace ckpt
