#include "coord/etcd_store.hpp"

#include <utility>

#include "base/error.hpp"
#include "coord/base64.hpp"
#include "coord/etcd_entries.hpp"
#include "coord/etcd_watch.hpp"

namespace ckpt::coord {
namespace {

using nlohmann::json;
using Effect = EtcdClient::Effect;

constexpr const char* range_path = "/v3/kv/range";
constexpr int keys_per_page = 10'000;

}  // namespace

EtcdStore::EtcdStore(std::shared_ptr<EtcdClient> client, std::string prefix)
    : client_(std::move(client)), prefix_(std::move(prefix)) {}

std::string EtcdStore::full_key(const std::string& key) const {
  if (!is_key(key))
    throw Failure(
        CKPT_ERR_INVALID,
        "\"" + key + "\" cannot name a coordination record: use names of A-Z a-z 0-9 . _ - with / between them");
  return prefix_ + key;
}

std::optional<Entry> EtcdStore::get(const std::string& key) {
  const json reply = client_->call(range_path, one_key(full_key(key)), Effect::read);
  revision_of(reply);
  const json& found = field(reply, "kvs");
  if (!found.is_array() || found.empty()) return std::nullopt;
  return entry_of(found.at(0), prefix_);
}

std::optional<std::uint64_t> EtcdStore::put_if(const std::string& key, const std::string& value,
                                               std::uint64_t expected) {
  const std::string at = to_base64(full_key(key));
  if (value.size() > value_bytes_max)
    throw Failure(CKPT_ERR_INVALID,
                  "the value of " + prefix_ + key + " is longer than 1 MiB, the limit of a coordination record");
  const json compare = {
      {"key", at}, {"target", "MOD"}, {"result", "EQUAL"}, {"mod_revision", std::to_string(expected)}};
  const json put = {{"request_put", {{"key", at}, {"value", to_base64(value)}}}};
  std::uint64_t revision = 0;
  return transact(compare, put, &revision) ? std::optional(revision) : std::nullopt;
}

bool EtcdStore::transact(const json& compare, const json& operation, std::uint64_t* revision) {
  const json reply = client_->call(
      "/v3/kv/txn", {{"compare", json::array({compare})}, {"success", json::array({operation})}}, Effect::write);
  const std::uint64_t now = revision_of(reply);
  if (revision != nullptr) *revision = now;
  return flag_field(reply, "succeeded");
}

std::vector<Entry> EtcdStore::list(const std::string& prefix) {
  return content_of(keys_from(prefix_ + prefix)).entries;
}

EtcdStore::Content EtcdStore::content() { return content_of(keys_from(prefix_)); }

EtcdStore::Content EtcdStore::notified_content() {
  return content_of(keys_between(prefix_, prefix_ + std::string(unwatched_from)));
}

EtcdStore::Content EtcdStore::content_of(json request) {
  Content content;
  request["limit"] = keys_per_page;
  for (bool more = true; more;) {
    const json reply = client_->call(range_path, request, Effect::read);
    const std::uint64_t revision = revision_of(reply);
    if (content.revision == 0) content.revision = revision;
    for (const json& found : field(reply, "kvs")) content.entries.push_back(entry_of(found, prefix_));
    more = flag_field(reply, "more") && !content.entries.empty();
    if (!more) break;
    request["key"] = to_base64(prefix_ + content.entries.back().key + '\0');  // the next possible key
    request["revision"] = std::to_string(content.revision);
  }
  std::erase_if(content.entries, [](const Entry& entry) { return !is_key(entry.key); });
  return content;
}

std::unique_ptr<Watch> EtcdStore::watch(std::function<void(const Entry&)> on_change) {
  return std::make_unique<EtcdWatch>(client_, prefix_, std::move(on_change));
}

std::vector<std::string> EtcdStore::keys(const std::string& prefix) {
  json request = keys_from(prefix_ + prefix);
  request["keys_only"] = true;
  const json reply = client_->call(range_path, request, Effect::read);
  revision_of(reply);
  std::vector<std::string> keys;
  for (const json& found : field(reply, "kvs")) keys.push_back(entry_of(found, prefix_).key);
  return keys;
}

void EtcdStore::remove(const std::string& key) {
  revision_of(client_->call("/v3/kv/deleterange", one_key(full_key(key)), Effect::write));
}

bool EtcdStore::remove_all(std::uint64_t unchanged_since) {
  json compare = keys_from(prefix_);  // the comparison must hold for each of these keys
  compare.update({{"target", "MOD"}, {"result", "LESS"}, {"mod_revision", std::to_string(unchanged_since + 1)}});
  const json removal = {{"request_delete_range", keys_from(prefix_)}};
  return transact(compare, removal);
}

}  // namespace ckpt::coord
