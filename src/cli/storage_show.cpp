// ckptctl ls and inspect.
#include <algorithm>
#include <array>
#include <ctime>
#include <set>

#include "arena/layout.hpp"
#include "base/dtype.hpp"
#include "cli/storage_commands.hpp"
#include "cli/table.hpp"
#include "persist/format.hpp"
#include "persist/shard_reader.hpp"

namespace ckpt::cli {
namespace {

using nlohmann::json;
using persist::Step;

std::string local_time(std::int64_t unix_s) {
  const auto when = static_cast<std::time_t>(unix_s);
  std::tm parts{};
  std::array<char, 32> text{};
  ::localtime_r(&when, &parts);
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts);
  return text.data();
}

// When a step became whole; nothing where it did not, or nobody knows.
std::optional<std::int64_t> written_s(Storage& storage, const Step& step) {
  if (!step.record) return std::nullopt;
  return storage.files().modified_s(storage.job() + "/" + persist::step_name(step.iteration) + "/" +
                                    std::string(persist::manifest_name));
}

json step_json(Storage& storage, const Step& step) {
  json found = {{"iteration", step.iteration},
                {"usable", step.usable()},
                {"withheld", step.is_withheld},
                {"problem", step.problem}};
  if (!step.record) return found;
  const auto written = written_s(storage, step);
  found["incarnation"] = step.version().incarnation();
  found["world_size"] = step.record->world_size;
  found["shards"] = persist::files_of(*step.record).size();
  found["bytes"] = data_bytes(*step.record);
  found["written_by"] = step.record->written_by;
  found["written_s"] = written ? json(*written) : json();
  return found;
}

Row step_row(const json& step, const std::string& state) {
  if (!step.contains("incarnation")) return {step.at("iteration").dump(), "-", "-", "-", "-", "-", "-", state};
  const json& written = step.at("written_s");
  return {step.at("iteration").dump(),
          step.at("incarnation").dump(),
          step.at("world_size").dump(),
          step.at("shards").dump(),
          human_bytes(step.at("bytes").get<std::uint64_t>()),
          written.is_null() ? "-" : local_time(written.get<std::int64_t>()),
          step.at("written_by").get<std::string>(),
          state};
}

Result list_job(Storage& storage) {
  Result result;
  result.json = {{"job", storage.job()}, {"steps", json::array()}};
  std::vector<Row> rows = {{"step", "life", "ranks", "shards", "bytes", "written", "by", "state"}};
  for (const Step& step : storage.steps()) {
    result.json["steps"].push_back(step_json(storage, step));
    rows.push_back(step_row(result.json["steps"].back(), step.usable() ? "usable" : problem_text(step)));
  }
  result.text = table(rows);
  return result;
}

Result list_jobs(Storage& storage) {
  Result result;
  result.json = {{"jobs", json::array()}};
  std::vector<Row> rows = {{"job", "steps", "newest usable", "bytes of it"}};
  for (const std::string& job : storage.jobs()) {
    const auto steps = persist::list_steps(storage.files(), job);
    const Step* newest = newest_usable(steps);
    const std::uint64_t bytes = newest != nullptr ? data_bytes(*newest->record) : 0;
    rows.push_back({job, std::to_string(steps.size()), newest != nullptr ? std::to_string(newest->iteration) : "-",
                    newest != nullptr ? human_bytes(bytes) : "-"});
    result.json["jobs"].push_back({{"job", job},
                                   {"steps", steps.size()},
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

// Who wrote it, each node once.
std::string writers_of(const persist::ShardFile& shard) {
  std::set<std::string> nodes;
  for (const persist::ShardRecord* piece : shard.pieces) nodes.insert(piece->written_by);
  std::string text;
  for (const std::string& node : nodes) text += (text.empty() ? "" : ", ") + node;
  return text;
}

Result show_shards(const persist::StepRecord& record) {
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

// As they lie in the shard's packed bytes.
arena::Layout layout_of(Storage& storage, const persist::StepRecord& record, const persist::ShardFile& shard) {
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

Result inspect(const StorageScope& scope, const std::string& step, const std::string& shard) {
  Storage storage(scope);
  const auto steps = storage.steps();
  const persist::StepRecord& record = find_usable_step(storage, steps, step);
  Result result = shard.empty() ? show_shards(record)
                                : show_tensors(shard, layout_of(storage, record, find_shard(storage, record, shard)));
  result.json["iteration"] = record.version.iteration();
  result.json["incarnation"] = record.version.incarnation();
  return result;
}

}  // namespace ckpt::cli
