// Keys, values and numbers as etcd's JSON has them. Pure functions; what makes no sense is a Failure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "coord/store.hpp"

namespace ckpt::coord {

// A field, or null where it is missing.
const nlohmann::json& field(const nlohmann::json& object, const char* name);
bool flag_field(const nlohmann::json& object, const char* name);         // false where it is missing
std::string text_field(const nlohmann::json& object, const char* name);  // "" where it is missing
// Of 64 bits, which comes as text; 0 where it is missing.
std::uint64_t number_field(const nlohmann::json& object, const char* name);

// The store's, as every reply has it; a reply without is not etcd's.
std::uint64_t revision_of(const nlohmann::json& reply);

// As the fields of a request: a key; a key and the one after all that begin with it; a key and one after it.
nlohmann::json one_key(const std::string& key);
nlohmann::json keys_from(const std::string& prefix);
nlohmann::json keys_between(const std::string& from, const std::string& to);

// Of "kvs" in a reply, or "kv" in an event; the prefix is taken off its key.
Entry entry_of(const nlohmann::json& key_value, const std::string& prefix);

}  // namespace ckpt::coord
