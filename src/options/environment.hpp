// Reads options from environment variables. CKPTENGINE_<KEY> sets the option <key>. A variable with that prefix that
// names no option causes only a warning, because it may belong to another program. CKPT_<KEY>, the name in earlier
// releases, is not read any more; it causes a warning, too. Plain values and pure functions.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt {

struct Environment {
  std::map<std::string, std::string> values;  // values of options, by key
  std::vector<std::string> unknown;           // variables with the prefix that name no option
  std::set<std::string> former;               // keys whose variable of earlier releases (CKPT_<KEY>) is set
};

// `lines` is a null-terminated list of "NAME=value" as in environ(7), or null for none. `is_key` tells whether an
// option has this name.
Environment read_environment(const char* const* lines, bool (*is_key)(std::string_view));

// Returns one sentence for each warning. `advice` is appended to the sentences about unknown variables.
std::vector<std::string> warnings_of(const Environment& environment, const std::string& advice);

// The variable that sets the option `key`, and its name in earlier releases.
std::string variable_of(const std::string& key);
std::string former_variable_of(const std::string& key);

}  // namespace ckpt
