// Keeps a job's secrets from other users. It makes private directories, and reads a secret file only if nobody else has
// access to it. Thread-safe.
#pragma once

#include <cstddef>
#include <string>

namespace ckpt {

// Makes `path` and the missing directories above it, with mode 0700. Throws Failure if another user made or could
// change `path` or one of the `parents` directories above it. Each of these must belong to this user or to root. None
// may be writable for everybody, unless it is sticky as /tmp is. Stops at the first directory that fails this check,
// and never follows another user's link. Opens each directory through its opened parent, so that nobody can exchange
// one in between. `option` names the option that gave the path, for the message.
void make_own_directory(const std::string& path, const char* option, std::size_t parents);

// Returns the file's text without the newline at its end. The file must belong to this user or to root, and nobody else
// may have any access to it. `option` names the file in messages. Throws Failure (CKPT_ERR_INVALID).
std::string read_secret_file(const std::string& path, const std::string& option);

}  // namespace ckpt
