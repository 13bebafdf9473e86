// Reads the options of ckptctl from its command line, the environment and the config file.
#pragma once

#include <unistd.h>

#include <iostream>

#include "options/options.hpp"

namespace ckpt::cli {

// `pairs`: the options on the command line. Throws Failure if an option is not valid. Writes warnings to standard error
// at the first call only.
inline Options read_options(const OptionPairs& pairs) {
  Options options = parse_options(Reader::tool, pairs, environ);
  static bool has_warned = false;
  if (!std::exchange(has_warned, true))
    for (const std::string& warning : options.warnings) std::cerr << "ckptctl: warning: " << warning << '\n';
  return options;
}

}  // namespace ckpt::cli
