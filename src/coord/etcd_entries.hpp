// Reads keys, values and numbers out of etcd's JSON. Pure functions. They throw Failure for invalid data.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "coord/store.hpp"

namespace ckpt::coord {

// A field, or null if it is missing.
const nlohmann::json& field(const nlohmann::json& object, const char* name);
bool flag_field(const nlohmann::json& object, const char* name);         // false where it is missing
std::string text_field(const nlohmann::json& object, const char* name);  // "" where it is missing
// A number of 64 bits, which comes as text; 0 if it is missing.
std::uint64_t number_field(const nlohmann::json& object, const char* name);

// The store's revision, which every reply has. A reply without it does not come from etcd.
std::uint64_t revision_of(const nlohmann::json& reply);

// Fields of a request for one key; for all keys that begin with a prefix; or for the keys from `from` up to, but
// without, `to`.
nlohmann::json one_key(const std::string& key);
nlohmann::json keys_from(const std::string& prefix);
nlohmann::json keys_between(const std::string& from, const std::string& to);

// Parses an entry of "kvs" in a reply, or "kv" in an event. Removes the prefix from its key.
Entry entry_of(const nlohmann::json& key_value, const std::string& prefix);

}  // namespace ckpt::coord
