// Compares the numbers that three papers print about wasted time with the papers' formulas and with ours. A number from
// a paper's text or table is exact to its last digit. A number read off a figure or taken from a phrase has a reading
// error, which is stated. Pure.
#pragma once

#include <limits>
#include <string>
#include <vector>

namespace ckpt::planner {

inline constexpr double not_known = std::numeric_limits<double>::quiet_NaN();

// One number that a paper prints.
struct Printed {
  std::string what;
  double printed = 0;
  double reading_error = 0;  // one unit of the last printed digit, or how far a reading can be off
  double formula = 0;        // what the paper's formula gives for the paper's inputs
  double ours = 0;           // our renewal form (model.hpp) for the same inputs, or not_known
  std::string unit;
  std::string explanation = {};  // if the number contradicts the formula: how the paper may have got it. Otherwise ""

  bool agrees() const;  // true if the number is what the formula gives, within the reading error
};

// All numbers of one table or figure.
struct Review {
  std::string key;  // for `ckptctl`, such as "table8"
  std::string title;
  std::string inputs;  // the inputs of the formulas, for people
  std::vector<Printed> numbers;
  std::vector<std::string> remarks;  // on the formulas themselves
  // True if each number agrees with its formula or has an explanation, and our form is close to the paper's formula.
  bool is_ok() const;
};

Review jit_table_8();
Review reft_figure_8();
Review gemini_figure_15();

}  // namespace ckpt::planner
