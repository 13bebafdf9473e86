// ckptctl rm.
#include <algorithm>

#include "cli/storage/storage_commands.hpp"
#include "cli/table.hpp"

namespace ckpt::cli {
namespace {

using persist::StoredCheckpoint;

// Why it should stay; "" if it may go.
std::string why_keep(Storage& storage, const std::vector<StoredCheckpoint>& all, const StoredCheckpoint& stored) {
  if (&stored == newest_usable(all))
    return stored_text(stored) + " is the newest usable checkpoint, which a restore would take";
  if (stored.is_withheld)
    return stored_text(stored) + " may be complete, but storage does not let this user read it: " + stored.problem;
  if (storage.may_be_coming(storage.job(), all, stored))
    return stored_text(stored) + " is newer than all usable checkpoints, and a job may be writing it now";
  return "";
}

std::string question(const Storage& storage, const std::vector<const StoredCheckpoint*>& stored_checkpoints) {
  std::string names;
  for (const StoredCheckpoint* stored : stored_checkpoints) names += (names.empty() ? "" : ", ") + stored_text(*stored);
  return "remove " + names + " of " + storage.job_label() + "?";
}

}  // namespace

Result rm(const StorageScope& scope, const std::vector<std::string>& words, const RemoveOptions& options) {
  Storage storage(scope);
  const auto all = storage.stored_checkpoints();
  std::vector<const StoredCheckpoint*> wanted;
  for (const std::string& word : words) {
    const StoredCheckpoint* const stored = &find_checkpoint(storage, all, word);
    if (std::find(wanted.begin(), wanted.end(), stored) == wanted.end()) wanted.push_back(stored);
  }
  if (wanted.empty())
    throw Failure(CKPT_ERR_INVALID, "no checkpoint is named; name those to remove; ckptctl ls lists them");
  for (const StoredCheckpoint* stored : wanted)
    if (const std::string why = why_keep(storage, all, *stored); !why.empty() && !options.force)
      throw Failure(CKPT_ERR_INVALID, why + "; to remove it all the same, give --force");
  if (!options.agree)
    throw Failure(CKPT_ERR_INVALID, "nothing was removed, because there is no terminal to ask on; confirm with --yes");

  Result result;
  result.json = {{"removed", nlohmann::json::array()}};
  if (!options.agree(question(storage, wanted))) {
    result.text = "nothing was removed\n";
    result.good = false;
    return result;
  }
  for (const StoredCheckpoint* stored : wanted) {
    persist::remove_checkpoint(storage.files(), storage.job(), stored->iteration);
    const std::uint64_t bytes = stored->record ? data_bytes(*stored->record) : 0;
    result.text += "removed " + stored_text(*stored) + (bytes > 0 ? ": " + human_bytes(bytes) : "") + "\n";
    result.json["removed"].push_back(stored->iteration);
  }
  return result;
}

}  // namespace ckpt::cli
