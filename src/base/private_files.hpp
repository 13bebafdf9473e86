// Files and directories that a job can trust with its secrets. Free functions; thread-safe.
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

// The file's text, without the line's end. It must be this user's, or root's, and nobody else may have any access to
// it. `option` names it in messages. Throws Failure (CKPT_ERR_INVALID).
std::string read_secret_file(const std::string& path, const std::string& option);

}  // namespace ckpt
