// What three papers printed about wasted time, beside their own formulas and ours. Numbers that stand in a paper's text
// or tables are exact to their last digit; what can only be read off a figure or a phrase has a stated reading error.
// Pure.
#pragma once

#include <limits>
#include <string>
#include <vector>

namespace ckpt::planner {

inline constexpr double not_known = std::numeric_limits<double>::quiet_NaN();

// One printed number.
struct Printed {
  std::string what;
  double printed = 0;
  double reading_error = 0;  // one unit of the last printed digit, or how far a reading can be off
  double formula = 0;        // what the paper's formula gives for the paper's inputs
  double ours = 0;           // the renewal form for the same inputs, or not_known
  std::string unit;
  std::string explanation = {};  // where it contradicts the formula: what would give the printed number, if anything

  bool agrees() const;
};

struct Review {
  std::string key;  // "table8"
  std::string title;
  std::string inputs;  // what the formulas were given
  std::vector<Printed> numbers;
  std::vector<std::string> remarks;  // on the formulas themselves
  // Each number agrees with its formula, or has an explanation; and ours meets the formula where that holds.
  bool is_ok() const;
};

Review jit_table_8();
Review reft_figure_8();
Review gemini_figure_15();

}  // namespace ckpt::planner
