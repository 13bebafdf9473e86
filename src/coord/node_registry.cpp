#include "coord/node_registry.hpp"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "kernels/digest.hpp"

namespace ckpt::coord {
namespace {

using nlohmann::json;

constexpr int attempts_max = 1000;  // each failed attempt means that another writer has won
constexpr std::uint32_t ids_max = 1u << 24;

std::string to_hex(std::string_view bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += digits[static_cast<unsigned char>(c) >> 4];
    text += digits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

std::optional<std::string> from_hex(const std::string& text) {
  const auto nibble = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
  if (text.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const int high = nibble(text[i]), low = nibble(text[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes += static_cast<char>(high << 4 | low);
  }
  return bytes;
}

std::string random_bytes_hex(std::size_t count) {
  std::string bytes(count, '\0');
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw_errno(CKPT_ERR_SYSTEM, "cannot get random bytes");
  return to_hex(bytes);
}

[[noreturn]] void throw_never_won(const std::string& key) {
  throw Failure(CKPT_ERR_TIMEOUT,
                "the coordination record \"" + key +
                    "\" changed at every attempt to write it; find agents that end and start again and again");
}

std::string to_text(const NodeEntry& node) {
  return json{{"id", node.id},
              {"arena_id", node.arena_id},
              {"agent_id", node.agent_id},
              {"pid", node.pid},
              {"address", to_hex(node.address)}}
      .dump();
}

// The number that a name tries at an attempt. Always the same for a name and an attempt. Attempts 0 and 1 choose below
// 1, the next two below 2, the next two below 4 and so on. So few nodes get small numbers, and many nodes soon find a
// free one.
std::uint32_t candidate(const std::string& name, int attempt) {
  constexpr int tries = 2, doublings_max = 24;
  static_assert(1u << doublings_max == ids_max);
  const std::string text = name + "/" + std::to_string(attempt);
  const std::uint64_t hash = kernels::leaf_digest(text.data(), text.size());
  return static_cast<std::uint32_t>(hash % (1u << std::min(attempt / tries, doublings_max)));
}

std::string number_key(std::uint32_t id) { return std::string(taken_prefix) + std::to_string(id); }

bool is_used_by_another(Store& store, const std::string& name, std::uint32_t id) {
  const auto nodes = registered_nodes(store);
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](const NodeEntry& node) { return node.id == id && node.name != name; });
}

// Whether the store says that the number belongs to this name. If the store has no record of the number and no other
// node uses it, first writes the record.
bool has_back(Store& store, const std::string& name, std::uint32_t id) {
  auto entry = store.get(number_key(id));
  if (!entry && !is_used_by_another(store, name, id) && store.put_if(number_key(id), name, 0)) return true;
  if (!entry) entry = store.get(number_key(id));
  return entry && entry->value == name;
}

// The field `name`. Returns nothing unless it is a whole number from 0 to `most`.
std::optional<std::uint64_t> number(const json& body, const char* name, std::uint64_t most) {
  const json& value = body.at(name);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > most) return std::nullopt;
  return value.get<std::uint64_t>();
}

}  // namespace

std::string node_key(const std::string& name) { return "nodes/" + name; }
std::string rival_key(const std::string& name) { return "rivals/" + name; }

// The numbers are a hash table in the store, from which nothing is ever removed. A name tries its numbers in order
// until it finds one that it has or can take. So a node competes only with those that try the same number, however many
// nodes start at once.
std::uint32_t node_id(Store& store, const std::string& name, std::optional<std::uint32_t> remembered) {
  if (remembered && has_back(store, name, *remembered)) return *remembered;
  for (int attempt = 0; attempt < attempts_max; ++attempt) {
    const std::uint32_t id = candidate(name, attempt);
    const std::string key = number_key(id);
    auto entry = store.get(key);
    // If the node remembers another number, the store has lost some records. Do not take a number that another node
    // uses and has not written again yet.
    if (!entry && remembered && is_used_by_another(store, name, id)) continue;
    if (!entry && store.put_if(key, name, 0)) return id;
    if (!entry) entry = store.get(key);  // another agent was first, or an earlier call of ours that failed
    if (entry && entry->value == name) return id;
  }
  throw Failure(CKPT_ERR_SYSTEM,
                "node " + name +
                    " gets no number, because other nodes have all numbers that it tried; stop the job's "
                    "agents (ckptctl stop), and remove the job's records (ckptctl gc --records)");
}

std::optional<NodeEntry> node_entry(const Entry& entry) {
  try {
    const json body = json::parse(entry.value);
    const auto address = from_hex(body.at("address").get<std::string>());
    const auto id = number(body, "id", ids_max - 1), arena_id = number(body, "arena_id", UINT64_MAX);
    const auto agent_id = number(body, "agent_id", UINT64_MAX), pid = number(body, "pid", INT64_MAX);
    if (!address || !id || !arena_id || !agent_id || !pid) return std::nullopt;
    return NodeEntry{entry.key.substr(entry.key.rfind('/') + 1),
                     static_cast<std::uint32_t>(*id),
                     *arena_id,
                     *agent_id,
                     static_cast<std::int64_t>(*pid),
                     *address};
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

void register_node(Store& store, const NodeEntry& node,
                   const std::function<bool(const NodeEntry& there)>& may_replace) {
  const std::string key = node_key(node.name);
  for (int attempt = 0; attempt < attempts_max; ++attempt) {
    const auto entry = store.get(key);
    const auto there = entry ? node_entry(*entry) : std::nullopt;
    if (there && may_replace && !may_replace(*there)) return;
    if (store.put_if(key, to_text(node), entry ? entry->revision : 0)) return;
  }
  throw_never_won(key);
}

bool put_back_node(Store& store, const NodeEntry& node) {
  bool was_gone = false;
  if (!store.get(number_key(node.id))) was_gone = store.put_if(number_key(node.id), node.name, 0).has_value();
  if (!store.get(node_key(node.name))) was_gone = store.put_if(node_key(node.name), to_text(node), 0) || was_gone;
  return was_gone;
}

void take_number(Store& store, const NodeEntry& node) {
  const auto entry = store.get(number_key(node.id));
  if (!entry || entry->value != node.name) store.put_if(number_key(node.id), node.name, entry ? entry->revision : 0);
}

std::vector<NodeEntry> registered_nodes(Store& store, std::vector<std::string>* damaged) {
  std::vector<NodeEntry> nodes;
  const auto take = [&](const Entry& entry) {
    if (auto node = node_entry(entry)) nodes.push_back(std::move(*node));
  };
  try {
    for (const Entry& entry : store.list("nodes/")) take(entry);
    return nodes;
  } catch (const Failure& failure) {
    if (failure.status() != CKPT_ERR_CORRUPT) throw;
  }
  // Some record is damaged. Read the records one by one, to get the others.
  nodes.clear();
  for (const std::string& key : store.keys("nodes/")) try {
      if (const auto entry = store.get(key)) take(*entry);
    } catch (const Failure& failure) {
      if (failure.status() != CKPT_ERR_CORRUPT) throw;
      if (damaged != nullptr) damaged->emplace_back(failure.what());
    }
  return nodes;
}

std::string fresh_token() { return random_bytes_hex(32); }

std::string job_token(Store& store, const std::string& remembered) {
  for (int attempt = 0; attempt < attempts_max; ++attempt) {
    if (const auto entry = store.get("token")) return entry->value;
    std::string token = remembered.empty() ? fresh_token() : remembered;
    if (store.put_if("token", token, 0)) return token;
  }
  throw_never_won("token");
}

}  // namespace ckpt::coord
