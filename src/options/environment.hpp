// Reads options from environment variables. CKPTENGINE_<KEY> sets the option <key>. A variable CKPTENGINE_... that
// names no option causes only a warning, because it may belong to another program. Earlier releases read CKPT_<KEY>.
// Such a variable is ignored now, and causes a warning, too. Plain values and pure functions.
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
  std::set<std::string> former;  // keys of options for which CKPT_<KEY>, the name in earlier releases, is set
};

// `lines` is a null-terminated list of "NAME=value" as in environ(7), or null for none. `is_key` tells whether an
// option has this name.
Environment read_environment(const char* const* lines, bool (*is_key)(std::string_view));

// Returns one sentence for each warning. `advice` is appended to the sentences about unknown variables.
std::vector<std::string> warnings_of(const Environment& environment, const std::string& advice);

// Return the name of the variable that sets the option `key`: today's name, and the name in earlier releases.
std::string variable_of(const std::string& key);
std::string former_variable_of(const std::string& key);

}  // namespace ckpt
