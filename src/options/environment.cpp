#include "options/environment.hpp"

#include <algorithm>
#include <cctype>
#include <optional>

namespace ckpt {
namespace {

constexpr std::string_view prefix = "CKPTENGINE_";
constexpr std::string_view former_prefix = "CKPT_";

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// The key that a variable names after the prefix; nothing if that is no key. Only names in upper case count.
std::optional<std::string> key_of(std::string_view variable, std::string_view its_prefix,
                                  bool (*is_key)(std::string_view)) {
  if (!variable.starts_with(its_prefix)) return std::nullopt;
  std::string name(variable.substr(its_prefix.size()));
  if (upper(name) != name) return std::nullopt;
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return is_key(name) ? std::optional(name) : std::nullopt;
}

// Variables with the prefix that are not options: those of the member hook's command, and of the project's own tests.
bool is_known_otherwise(std::string_view variable) {
  const std::string_view name = variable.substr(prefix.size());
  return name.starts_with("MEMBER_") || name.starts_with("TEST_") || name == "BUILD_DIR";
}

}  // namespace

std::string variable_of(const std::string& key) { return std::string(prefix) + upper(key); }
std::string former_variable_of(const std::string& key) { return std::string(former_prefix) + upper(key); }

Environment read_environment(const char* const* lines, bool (*is_key)(std::string_view)) {
  Environment found;
  for (; lines != nullptr && *lines != nullptr; ++lines) {
    const std::string_view line = *lines;
    const std::string_view variable = line.substr(0, line.find('='));
    if (const auto key = key_of(variable, prefix, is_key))
      found.values.insert_or_assign(*key, line.substr(std::min(line.size(), variable.size() + 1)));
    else if (variable.starts_with(prefix) && !is_known_otherwise(variable))
      found.unknown.emplace_back(variable);
    else if (const auto former = key_of(variable, former_prefix, is_key))
      found.former.insert(*former);
  }
  return found;
}

std::vector<std::string> warnings_of(const Environment& environment, const std::string& advice) {
  std::vector<std::string> warnings;
  for (const std::string& variable : environment.unknown)
    warnings.push_back("environment variable " + variable + " is ignored, because no option has this name; " + advice);
  // One sentence about all variables of earlier releases, because usually several are set. It leaves out options that
  // are also set under the new name.
  std::string former, now;
  for (const std::string& key : environment.former) {
    if (environment.values.contains(key)) continue;
    former += (former.empty() ? "" : ", ") + former_variable_of(key);
    now += (now.empty() ? "" : ", ") + variable_of(key);
  }
  if (!former.empty())
    warnings.push_back("environment variables " + former + " are not read any more; set " + now + " instead");
  return warnings;
}

}  // namespace ckpt
