// What etcd's gateway answers: records in JSON, with base64 in it. What is taken is in the bounds of what was asked
// for, and anything else is a Failure.
#include "base/error.hpp"
#include "coord/base64.hpp"
#include "coord/etcd_entries.hpp"
#include "fuzz/fuzz.hpp"

namespace ckpt::fuzz {
namespace {

using nlohmann::json;

const std::string prefix = "/ckptengine/job/";

template <class Take>
void take_or_fail(Take take) {
  try {
    take();
  } catch (const Failure& failure) {
    require(failure.status() == CKPT_ERR_CORRUPT);
  }
}

void try_entry(const json& key_value) {
  take_or_fail([&] {
    const coord::Entry entry = coord::entry_of(key_value, prefix);
    require(coord::from_base64(coord::text_field(key_value, "key")) == prefix + entry.key);
    require(coord::from_base64(coord::to_base64(entry.value)) == entry.value);
  });
}

}  // namespace

void try_input(Input input) {
  const std::string text = text_of(input);
  if (const auto bytes = coord::from_base64(text)) require(coord::from_base64(coord::to_base64(*bytes)) == bytes);
  require(coord::from_base64(coord::to_base64(text)) == text);
  const json message = json::parse(text, nullptr, false);
  for (const char* name : {"more", "succeeded", "canceled"}) take_or_fail([&] { coord::flag_field(message, name); });
  take_or_fail([&] { coord::number_field(coord::field(message, "header"), "revision"); });
  for (const json& found : coord::field(message, "kvs")) try_entry(found);
  for (const json& event : coord::field(coord::field(message, "result"), "events"))
    try_entry(coord::field(event, "kv"));
}

std::vector<std::string> seeds() {
  const std::string key_value = R"({"key":")" + coord::to_base64(prefix + "leader") +
                                R"(","create_revision":"2","mod_revision":"7","version":"3","value":"e30="})";
  const std::string header = R"({"header":{"cluster_id":"1","member_id":"2","revision":"7","raft_term":"2"},)";
  return {
      header + R"("kvs":[)" + key_value + R"(],"more":true,"count":"2"})", header + R"("succeeded":true})",
      R"({"result":)" + header + R"("events":[{"kv":)" + key_value + R"(},{"type":"DELETE","kv":)" + key_value + "}]}}",
      R"({"error":"etcdserver: no leader","code":14,"message":"etcdserver: no leader"})", "e30="};
}

}  // namespace ckpt::fuzz
