#include "cli/plan/plan_paper.hpp"

#include <array>
#include <cmath>
#include <cstdio>

#include "cli/table.hpp"
#include "placement/odds/planner/papers.hpp"

namespace ckpt::cli {
namespace {

using nlohmann::json;
using planner::Printed;
using planner::Review;

std::string significant(double value) {
  if (std::isnan(value)) return "-";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), std::abs(value) < 0.01 ? "%.2g" : "%.4g", value);
  return text.data();
}

std::string review_text(const Review& review) {
  std::string text = review.title + "\nInputs: " + review.inputs + ".\n";
  std::vector<Row> rows = {{"", "printed", "+/-", "its formula", "ours", "", ""}};
  for (const Printed& each : review.numbers)
    rows.push_back({each.what, significant(each.printed), significant(each.reading_error), significant(each.formula),
                    significant(each.ours), each.unit, each.agrees() ? "" : "contradicts"});
  text += table(rows, "  ");
  int contradictions = 0;
  for (const Printed& each : review.numbers) {
    if (each.agrees()) continue;
    if (contradictions++ == 0) text += "Printed numbers that contradict their formula:\n";
    text += "  " + each.what + ": printed " + significant(each.printed) + ", formula " + significant(each.formula) +
            " " + each.unit + (each.explanation.empty() ? "" : "; " + each.explanation) + ".\n";
  }
  for (const std::string& remark : review.remarks) text += "  " + remark + "\n";
  return text + "\n";
}

json review_json(const Review& review) {
  json found = {{"title", review.title},
                {"inputs", review.inputs},
                {"ok", review.is_ok()},
                {"numbers", json::array()},
                {"remarks", review.remarks}};
  for (const Printed& each : review.numbers)
    found["numbers"].push_back({{"what", each.what},
                                {"printed", each.printed},
                                {"reading_error", each.reading_error},
                                {"formula", each.formula},
                                {"ours", std::isnan(each.ours) ? json(nullptr) : json(each.ours)},
                                {"unit", each.unit},
                                {"agrees", each.agrees()},
                                {"explanation", each.explanation}});
  return found;
}

}  // namespace

Result show_papers() {
  Result result;
  result.text =
      "Each row: the printed number and how exactly it is known, what the paper's formula gives for the paper's "
      "inputs, "
      "and our renewal form, which also counts failures during recovery.\n\n";
  std::string verdict = "paper:";
  for (const Review& review : {planner::jit_table_8(), planner::reft_figure_8(), planner::gemini_figure_15()}) {
    result.text += review_text(review);
    result.json[review.key] = review_json(review);
    result.good = result.good && review.is_ok();
    verdict += " " + review.key + "=" + (review.is_ok() ? "ok" : "differs");
  }
  result.text += verdict + "\n";
  result.json["paper"] = verdict.substr(7);
  return result;
}

}  // namespace ckpt::cli
