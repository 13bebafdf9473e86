// ckptctl verify.
#include "cli/storage_commands.hpp"
#include "cli/table.hpp"

namespace ckpt::cli {
namespace {

using nlohmann::json;
using persist::Step;

std::vector<std::string> problems_of(Storage& storage, const Step& step, Progress& progress) {
  if (!step.usable()) return {problem_text(step)};
  progress.begin("reading " + step_text(step), data_bytes(*step.record));
  auto problems = read_shards(storage.files(), *step.record, persist::files_of(*step.record), progress);
  progress.end();
  return problems;
}

}  // namespace

Result verify(const StorageScope& scope, const std::vector<std::string>& words, Progress& progress) {
  Storage storage(scope);
  const auto all = storage.steps();
  std::vector<const Step*> wanted;
  for (const std::string& word : words) wanted.push_back(&find_step(storage, all, word));
  if (words.empty())
    for (const Step& step : all) wanted.push_back(&step);

  Result result;
  result.json = {{"steps", json::array()}};
  for (const Step* step : wanted) {
    if (words.empty() && storage.may_be_coming(storage.job(), all, *step)) {
      result.text += step_text(*step) + ": not finished, or just being written\n";
      continue;
    }
    const auto problems = problems_of(storage, *step, progress);
    result.json["steps"].push_back({{"iteration", step->iteration},
                                    {"whole", problems.empty()},
                                    {"withheld", step->is_withheld},
                                    {"problems", problems}});
    if (problems.empty()) result.text += step_text(*step) + ": whole, " + human_bytes(data_bytes(*step->record)) + "\n";
    for (const std::string& problem : problems) result.text += step_text(*step) + ": " + problem + "\n";
    result.good = result.good && problems.empty();
  }
  return result;
}

}  // namespace ckpt::cli
