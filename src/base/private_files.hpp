// Keeps a job's secrets from other users. It makes private directories, and reads a secret file only if nobody else has
// access to it. Thread-safe.
#pragma once

#include <cstddef>
#include <string>

namespace ckpt {

// Makes the directory `path` and the missing directories above it, with mode 0700. Checks the owner and the mode of
// `path`, and of as many directories directly above it as `parents` says. A checked directory must belong to this user
// or to root, and must not be writable for everybody unless it is sticky, as /tmp is. Throws Failure for the first
// directory that breaks these rules. Makes nothing through a link that belongs to another user. Opens each directory
// through its opened parent, so that nobody can exchange a directory meanwhile. `option` is the name of the option that
// gave the path; messages name it.
void make_own_directory(const std::string& path, const char* option, std::size_t parents);

// Returns the file's text without the newlines at its end. The file must belong to this user or to root, and its mode
// must give no access to group and others. `option` is the name of the option that gave `path`; messages name both.
// Throws Failure (CKPT_ERR_INVALID) if the file cannot be read, is not private, or is empty or longer than 4096 bytes.
std::string read_secret_file(const std::string& path, const std::string& option);

}  // namespace ckpt
