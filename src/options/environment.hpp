// What environment variables say about options. CKPTENGINE_<KEY> gives an option; every other variable of that prefix
// is a warning, since anybody may have set it. CKPT_<KEY> did so once, and is not read any more. Plain values.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt {

struct Environment {
  std::map<std::string, std::string> values;  // by key
  std::vector<std::string> unknown;           // variables of the prefix that are no option
  std::set<std::string> former;               // keys whose former variable is set
};

// `lines` is a null-terminated list as in environ(7), or null for none.
Environment read_environment(const char* const* lines, bool (*is_key)(std::string_view));

// A sentence each. `advice` ends those about unknown variables.
std::vector<std::string> warnings_of(const Environment& environment, const std::string& advice);

std::string variable_of(const std::string& key);
std::string former_variable_of(const std::string& key);

}  // namespace ckpt
