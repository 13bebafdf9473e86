#include "coord/etcd_entries.hpp"

#include <charconv>

#include "base/error.hpp"
#include "coord/base64.hpp"

namespace ckpt::coord {
namespace {

using nlohmann::json;

[[noreturn]] void throw_senseless(const json& text) {
  throw Failure(CKPT_ERR_CORRUPT, "an answer from etcd is not understood (" +
                                      text.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 100) +
                                      "); check whether a proxy is in front of it");
}

std::string bytes_field(const json& object, const char* name) {
  const auto bytes = from_base64(text_field(object, name));
  if (!bytes) throw_senseless(field(object, name));
  return *bytes;
}

}  // namespace

const json& field(const json& object, const char* name) {
  static const json null;
  if (!object.is_object()) return null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

bool flag_field(const json& object, const char* name) {
  const json& found = field(object, name);
  if (!found.is_null() && !found.is_boolean()) throw_senseless(found);
  return found.is_boolean() && found.get<bool>();
}

std::string text_field(const json& object, const char* name) {
  const json& found = field(object, name);
  if (!found.is_null() && !found.is_string()) throw_senseless(found);
  return found.is_string() ? found.get<std::string>() : "";
}

std::uint64_t number_field(const json& object, const char* name) {
  const json& found = field(object, name);
  if (found.is_number_unsigned()) return found.get<std::uint64_t>();
  const std::string text = text_field(object, name);
  if (text.empty()) return 0;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) throw_senseless(found);
  return number;
}

std::uint64_t revision_of(const json& reply) {
  const std::uint64_t revision = number_field(field(reply, "header"), "revision");
  if (revision == 0) throw_senseless(reply);
  return revision;
}

json one_key(const std::string& key) { return {{"key", to_base64(key)}}; }

json keys_between(const std::string& from, const std::string& to) {
  return {{"key", to_base64(from)}, {"range_end", to_base64(to)}};
}

json keys_from(const std::string& prefix) {
  std::string end = prefix;
  ++end.back();  // cannot overflow, because a prefix ends in a character that keys may have
  return keys_between(prefix, end);
}

Entry entry_of(const json& key_value, const std::string& prefix) {
  if (!key_value.is_object()) throw_senseless(key_value);
  const std::string key = bytes_field(key_value, "key");
  if (!key.starts_with(prefix)) throw_senseless(key_value);
  return {key.substr(prefix.size()), bytes_field(key_value, "value"), number_field(key_value, "mod_revision")};
}

}  // namespace ckpt::coord
