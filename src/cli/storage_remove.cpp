// ckptctl rm.
#include <algorithm>

#include "cli/storage_commands.hpp"
#include "cli/table.hpp"

namespace ckpt::cli {
namespace {

using persist::Step;

// Why it should stay; "" where it may go.
std::string why_keep(Storage& storage, const std::vector<Step>& all, const Step& step) {
  if (&step == newest_usable(all)) return step_text(step) + " is the newest usable one, which a restore takes";
  if (step.is_withheld) return "storage keeps " + step_text(step) + " from us, which may be whole: " + step.problem;
  if (storage.may_be_coming(storage.job(), all, step))
    return step_text(step) + " is newer than all that are usable and may just be being written";
  return "";
}

std::string question(const Storage& storage, const std::vector<const Step*>& steps) {
  std::string names;
  for (const Step* step : steps) names += (names.empty() ? "" : ", ") + step_text(*step);
  return "remove " + names + " of " + storage.job_label() + "?";
}

}  // namespace

Result rm(const StorageScope& scope, const std::vector<std::string>& words, const RemoveOptions& options) {
  Storage storage(scope);
  const auto all = storage.steps();
  std::vector<const Step*> wanted;
  for (const std::string& word : words) {
    const Step* const step = &find_step(storage, all, word);
    if (std::find(wanted.begin(), wanted.end(), step) == wanted.end()) wanted.push_back(step);
  }
  if (wanted.empty()) throw Failure(CKPT_ERR_INVALID, "name the steps to remove; ckptctl ls shows which there are");
  for (const Step* step : wanted)
    if (const std::string why = why_keep(storage, all, *step); !why.empty() && !options.force)
      throw Failure(CKPT_ERR_INVALID, why + "; --force removes it all the same");
  if (!options.agree)
    throw Failure(CKPT_ERR_INVALID, "nothing was removed, since nobody can be asked; agree beforehand with --yes");

  Result result;
  result.json = {{"removed", nlohmann::json::array()}};
  if (!options.agree(question(storage, wanted))) {
    result.text = "nothing was removed\n";
    result.good = false;
    return result;
  }
  for (const Step* step : wanted) {
    persist::remove_step(storage.files(), storage.job(), step->iteration);
    const std::uint64_t bytes = step->record ? data_bytes(*step->record) : 0;
    result.text += "removed " + step_text(*step) + (bytes > 0 ? ": " + human_bytes(bytes) : "") + "\n";
    result.json["removed"].push_back(step->iteration);
  }
  return result;
}

}  // namespace ckpt::cli
