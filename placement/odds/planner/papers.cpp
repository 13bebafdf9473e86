#include "placement/odds/planner/papers.hpp"

#include <algorithm>
#include <cmath>

namespace ckpt::planner {

bool Printed::agrees() const { return std::abs(printed - formula) <= reading_error * (1 + 1e-9); }

bool Review::is_ok() const {
  constexpr double agreed = 0.06;  // how far our renewal form may be from the paper's first-order formula, as a share
  return std::all_of(numbers.begin(), numbers.end(), [](const Printed& each) {
    const bool ours_meets =
        std::isnan(each.ours) || std::abs(each.ours - each.formula) <= agreed * std::abs(each.formula);
    return ours_meets && (each.agrees() || !each.explanation.empty());
  });
}

}  // namespace ckpt::planner
