// Secrets that options name by the files they are in, so that they show in no list of processes.
#pragma once

#include <string>

namespace ckpt {

// The file's text, without the line's end. It must be this user's, or root's, and nobody else may have any access to
// it. `option` names it in messages. Throws Failure (CKPT_ERR_INVALID).
std::string read_secret_file(const std::string& path, const std::string& option);

}  // namespace ckpt
