// Reads whole files that a user names.
#pragma once

#include <fstream>
#include <sstream>
#include <string>

#include "base/error.hpp"

namespace ckpt::cli {

// Returns the content of the file. Throws Failure (CKPT_ERR_INVALID) if it cannot be read.
inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf()))
    throw Failure(CKPT_ERR_INVALID,
                  "cannot read the file " + path + "; name a file that exists and that this user can read");
  return text.str();
}

}  // namespace ckpt::cli
