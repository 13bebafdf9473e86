// Reads options from environment variables: CKPTENGINE_<KEY> gives an option. An unknown variable with that prefix is
// only a warning, because it may belong to another program. CKPT_<KEY>, the name in earlier releases, is only a
// warning, too. Plain values and pure functions.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt {

struct Environment {
  std::map<std::string, std::string> values;  // by key
  std::vector<std::string> unknown;           // variables with the prefix that name no option
  std::set<std::string> former;               // keys whose former variable is set
};

// `lines` is a null-terminated list as in environ(7), or null for none.
Environment read_environment(const char* const* lines, bool (*is_key)(std::string_view));

// Returns one sentence for each warning. `advice` is appended to those about unknown variables.
std::vector<std::string> warnings_of(const Environment& environment, const std::string& advice);

std::string variable_of(const std::string& key);
std::string former_variable_of(const std::string& key);

}  // namespace ckpt
