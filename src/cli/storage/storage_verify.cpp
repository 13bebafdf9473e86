// ckptctl verify.
#include "cli/storage/storage_commands.hpp"
#include "cli/table.hpp"

namespace ckpt::cli {
namespace {

using nlohmann::json;
using persist::StoredCheckpoint;

std::vector<std::string> problems_of(Storage& storage, const StoredCheckpoint& stored, Progress& progress) {
  if (!stored.usable()) return {problem_text(stored)};
  progress.begin("reading " + stored_text(stored), data_bytes(*stored.record));
  auto problems = read_shards(storage.files(), *stored.record, persist::files_of(*stored.record), progress);
  progress.end();
  return problems;
}

}  // namespace

Result verify(const StorageScope& scope, const std::vector<std::string>& words, Progress& progress) {
  Storage storage(scope);
  const auto all = storage.stored_checkpoints();
  std::vector<const StoredCheckpoint*> wanted;
  for (const std::string& word : words) wanted.push_back(&find_checkpoint(storage, all, word));
  if (words.empty())
    for (const StoredCheckpoint& stored : all) wanted.push_back(&stored);

  Result result;
  result.json = {{"checkpoints", json::array()}};
  for (const StoredCheckpoint* stored : wanted) {
    if (words.empty() && storage.may_be_coming(storage.job(), all, *stored)) {
      result.text += stored_text(*stored) + ": not finished, or just being written\n";
      continue;
    }
    const auto problems = problems_of(storage, *stored, progress);
    result.json["checkpoints"].push_back({{"iteration", stored->iteration},
                                          {"whole", problems.empty()},
                                          {"withheld", stored->is_withheld},
                                          {"problems", problems}});
    if (problems.empty())
      result.text += stored_text(*stored) + ": whole, " + human_bytes(data_bytes(*stored->record)) + "\n";
    for (const std::string& problem : problems) result.text += stored_text(*stored) + ": " + problem + "\n";
    result.good = result.good && problems.empty();
  }
  return result;
}

}  // namespace ckpt::cli
