// Reads keys, values and numbers from etcd's replies in JSON, and makes parts of requests. Pure functions. They throw
// Failure (CKPT_ERR_CORRUPT) for invalid data.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "coord/store.hpp"

namespace ckpt::coord {

// The field `name`, or a JSON null if it is missing.
const nlohmann::json& field(const nlohmann::json& object, const char* name);
bool flag_field(const nlohmann::json& object, const char* name);         // false if it is missing
std::string text_field(const nlohmann::json& object, const char* name);  // "" if it is missing
// A 64-bit number, which etcd writes as text; 0 if it is missing.
std::uint64_t number_field(const nlohmann::json& object, const char* name);

// Returns etcd's revision at the time of the reply. Every reply has it. Throws if it is missing.
std::uint64_t revision_of(const nlohmann::json& reply);

// Return the fields of a request that select keys. one_key(): this key. keys_from(): all keys that begin with `prefix`.
// keys_between(): all keys from `from` up to but not including `to`.
nlohmann::json one_key(const std::string& key);
nlohmann::json keys_from(const std::string& prefix);
nlohmann::json keys_between(const std::string& from, const std::string& to);

// Parses an element of "kvs" in a reply, or the "kv" of an event. Removes the prefix from its key.
Entry entry_of(const nlohmann::json& key_value, const std::string& prefix);

}  // namespace ckpt::coord
