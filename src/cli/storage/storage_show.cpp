// ckptctl ls and inspect.
#include <algorithm>
#include <array>
#include <ctime>
#include <set>

#include "arena/layout.hpp"
#include "base/dtype.hpp"
#include "cli/storage/storage_commands.hpp"
#include "cli/table.hpp"
#include "persist/shard_reader.hpp"
#include "persist/storage_format.hpp"

namespace ckpt::cli {
namespace {

using nlohmann::json;
using persist::StoredCheckpoint;

std::string local_time(std::int64_t unix_s) {
  const auto when = static_cast<std::time_t>(unix_s);
  std::tm parts{};
  std::array<char, 32> text{};
  ::localtime_r(&when, &parts);
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts);
  return text.data();
}

// When a checkpoint became whole. Nothing if it is not whole, or nobody knows.
std::optional<std::int64_t> written_s(Storage& storage, const StoredCheckpoint& stored) {
  if (!stored.record) return std::nullopt;
  return storage.files().modified_s(storage.job() + "/" + persist::folder_name(stored.iteration) + "/" +
                                    std::string(persist::manifest_name));
}

json checkpoint_json(Storage& storage, const StoredCheckpoint& stored) {
  json found = {{"iteration", stored.iteration},
                {"usable", stored.usable()},
                {"withheld", stored.is_withheld},
                {"problem", stored.problem}};
  if (!stored.record) return found;
  const auto written = written_s(storage, stored);
  found["incarnation"] = stored.checkpoint().incarnation();
  found["world_size"] = stored.record->world_size;
  found["shards"] = persist::files_of(*stored.record).size();
  found["bytes"] = data_bytes(*stored.record);
  found["written_by"] = stored.record->written_by;
  found["written_s"] = written ? json(*written) : json();
  return found;
}

Row checkpoint_row(const json& stored, const std::string& state) {
  if (!stored.contains("incarnation")) return {stored.at("iteration").dump(), "-", "-", "-", "-", "-", "-", state};
  const json& written = stored.at("written_s");
  return {stored.at("iteration").dump(),
          stored.at("incarnation").dump(),
          stored.at("world_size").dump(),
          stored.at("shards").dump(),
          human_bytes(stored.at("bytes").get<std::uint64_t>()),
          written.is_null() ? "-" : local_time(written.get<std::int64_t>()),
          stored.at("written_by").get<std::string>(),
          state};
}

Result list_job(Storage& storage) {
  Result result;
  result.json = {{"job", storage.job()}, {"checkpoints", json::array()}};
  std::vector<Row> rows = {{"checkpoint", "incarnation", "ranks", "shards", "bytes", "written", "by", "state"}};
  for (const StoredCheckpoint& stored : storage.stored_checkpoints()) {
    result.json["checkpoints"].push_back(checkpoint_json(storage, stored));
    rows.push_back(
        checkpoint_row(result.json["checkpoints"].back(), stored.usable() ? "usable" : problem_text(stored)));
  }
  result.text = table(rows);
  return result;
}

Result list_jobs(Storage& storage) {
  Result result;
  result.json = {{"jobs", json::array()}};
  std::vector<Row> rows = {{"job", "checkpoints", "newest usable", "bytes of it"}};
  for (const std::string& job : storage.jobs()) {
    const auto stored_checkpoints = persist::list_checkpoints(storage.files(), job);
    const StoredCheckpoint* newest = newest_usable(stored_checkpoints);
    const std::uint64_t bytes = newest != nullptr ? data_bytes(*newest->record) : 0;
    rows.push_back({job, std::to_string(stored_checkpoints.size()),
                    newest != nullptr ? std::to_string(newest->iteration) : "-",
                    newest != nullptr ? human_bytes(bytes) : "-"});
    result.json["jobs"].push_back({{"job", job},
                                   {"checkpoints", stored_checkpoints.size()},
                                   {"newest_usable", newest != nullptr ? json(newest->iteration) : json()},
                                   {"newest_usable_bytes", bytes}});
  }
  result.text = rows.size() > 1 ? table(rows) : "there are no jobs in " + storage.files().label("") + "\n";
  return result;
}

std::string hex(std::uint64_t digest) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(digest));
  return text.data();
}

// The nodes that wrote it, each once.
std::string writers_of(const persist::ShardFile& shard) {
  std::set<std::string> nodes;
  for (const persist::ShardRecord* piece : shard.pieces) nodes.insert(piece->written_by);
  std::string text;
  for (const std::string& node : nodes) text += (text.empty() ? "" : ", ") + node;
  return text;
}

Result show_shards(const persist::CheckpointRecord& record) {
  Result result;
  std::vector<Row> rows = {{"shard", "pieces", "bytes", "written by", "file"}};
  result.json = {{"shards", json::array()}};
  for (const persist::ShardFile& shard : persist::files_of(record)) {
    rows.push_back({shard.shard, std::to_string(shard.pieces.size()), human_bytes(data_bytes(shard)), writers_of(shard),
                    shard.name});
    json pieces = json::array();
    for (const persist::ShardRecord* piece : shard.pieces)
      pieces.push_back({{"name", piece->shard},
                        {"bytes", piece->data_bytes},
                        {"root_xxh3", hex(piece->root_digest)},
                        {"written_by", piece->written_by}});
    result.json["shards"].push_back(
        {{"shard", shard.shard}, {"file", shard.name}, {"bytes", data_bytes(shard)}, {"pieces", std::move(pieces)}});
  }
  result.text = table(rows);
  return result;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + text + "]";
}

// In the order of the shard's packed bytes.
arena::Layout layout_of(Storage& storage, const persist::CheckpointRecord& record, const persist::ShardFile& shard) {
  const persist::ShardReader reader(storage.files(), record, shard.pieces.front()->shard);
  const std::string& text = reader.manifest().layout;
  if (!text.empty()) return arena::parse_layout(text);
  return arena::pack({{std::string(persist::opaque_tensor_name), CKPT_U8, {std::int64_t(data_bytes(shard))}, 0, 0}});
}

Result show_tensors(const std::string& name, const arena::Layout& layout) {
  Result result;
  std::vector<Row> rows = {{"tensor", "type", "shape", "offset", "bytes"}};
  result.json = {{"shard", name}, {"tensors", json::array()}};
  for (const arena::LayoutEntry& entry : layout.entries) {
    rows.push_back({entry.name, info(entry.dtype).name, shape_text(entry.shape), std::to_string(entry.offset_bytes),
                    std::to_string(entry.size_bytes)});
    result.json["tensors"].push_back({{"name", entry.name},
                                      {"dtype", info(entry.dtype).name},
                                      {"shape", entry.shape},
                                      {"offset_bytes", entry.offset_bytes},
                                      {"size_bytes", entry.size_bytes}});
  }
  result.text = rows.size() > 1 ? table(rows) : "shard " + name + " holds no tensors\n";
  return result;
}

}  // namespace

Result ls(const StorageScope& scope) {
  Storage storage(scope);
  return scope.job.empty() ? list_jobs(storage) : list_job(storage);
}

Result inspect(const StorageScope& scope, const std::string& stored, const std::string& shard) {
  Storage storage(scope);
  const auto stored_checkpoints = storage.stored_checkpoints();
  const persist::CheckpointRecord& record = find_usable_checkpoint(storage, stored_checkpoints, stored);
  Result result = shard.empty() ? show_shards(record)
                                : show_tensors(shard, layout_of(storage, record, find_shard(storage, record, shard)));
  result.json["iteration"] = record.checkpoint.iteration();
  result.json["incarnation"] = record.checkpoint.incarnation();
  return result;
}

}  // namespace ckpt::cli
