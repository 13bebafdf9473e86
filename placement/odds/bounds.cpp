#include "placement/odds/bounds.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace ckpt::placement {
namespace {

void check_probability(double value, const char* what) {
  if (!(value >= 0 && value <= 1)) {
    throw std::invalid_argument(std::string("the probability of ") + what + " must be from 0 to 1, not " +
                                std::to_string(value));
  }
}

}  // namespace

double log_choose(std::uint64_t a, std::uint64_t b) {
  if (b > a) return -std::numeric_limits<double>::infinity();
  b = std::min(b, a - b);
  if (b > 1000) return std::lgamma(double(a) + 1) - std::lgamma(double(b) + 1) - std::lgamma(double(a - b) + 1);
  double sum = 0;  // with few factors: avoids the cancellation of large logarithms
  for (std::uint64_t i = 0; i < b; ++i) sum += std::log(double(a - i) / double(i + 1));
  return sum;
}

double union_bound(std::uint32_t nodes, std::uint32_t copies, std::uint32_t distinct_sets, std::uint32_t lost) {
  if (copies == 0 || copies > nodes) {
    throw std::invalid_argument("the number of copies must be from 1 to " + std::to_string(nodes) +
                                ", the number of nodes, not " + std::to_string(copies));
  }
  if (lost > nodes) {
    throw std::invalid_argument(std::to_string(lost) + " lost nodes are too many: there are only " +
                                std::to_string(nodes) + " nodes");
  }
  if (lost < copies) return 1;
  const double log_share = log_choose(nodes - copies, lost - copies) - log_choose(nodes, lost);
  return std::max(0.0, 1 - distinct_sets * std::exp(log_share));
}

double corollary_1(std::uint32_t nodes, std::uint32_t copies, std::uint32_t lost) {
  if (copies == 0 || nodes % copies != 0) {
    throw std::invalid_argument("GEMINI's corollary 1 needs a number of nodes that is a multiple of the copies, not " +
                                std::to_string(nodes) + " nodes and " + std::to_string(copies) + " copies");
  }
  return union_bound(nodes, copies, nodes / copies, lost);
}

double best_possible(std::uint32_t nodes, std::uint32_t copies) {
  return union_bound(nodes, copies, (nodes + copies - 1) / copies, copies);
}

double largest_gap_of_mixed(std::uint32_t nodes, std::uint32_t copies) {
  if (nodes % copies == 0) return 0;
  return (2.0 * copies - 3) * std::exp(-log_choose(nodes, copies));
}

double paper_bound(const Pattern& pattern, std::uint32_t lost) {
  const std::uint32_t nodes = pattern.nodes();
  const std::uint32_t copies = pattern.copies();
  switch (pattern.strategy()) {
    case Strategy::ring:
      return union_bound(nodes, copies, pattern.distinct_holder_sets(), lost);
    case Strategy::group:
    case Strategy::mixed:
    case Strategy::cover:
      if (lost < copies) return 1;
      if (nodes % copies == 0) return corollary_1(nodes, copies, lost);
      if (lost == copies && pattern.strategy() != Strategy::cover) {
        return std::max(0.0, best_possible(nodes, copies) - largest_gap_of_mixed(nodes, copies));
      }
      break;
    case Strategy::sharded:
    case Strategy::sharded_copy:
      break;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

double weibull_survival(double rate_per_day, double time_days, double shape) {
  if (!(rate_per_day >= 0))
    throw std::invalid_argument("the rate of a Weibull distribution must be 0 or more, not " +
                                std::to_string(rate_per_day));
  if (!(time_days >= 0))
    throw std::invalid_argument("the time must be 0 days or more, not " + std::to_string(time_days));
  if (!(shape > 0))
    throw std::invalid_argument("the shape of a Weibull distribution must be above 0, not " + std::to_string(shape));
  return std::exp(-rate_per_day * std::pow(time_days, shape));
}

double reft_survival(std::uint32_t nodes, std::uint32_t group_size, double node, double process) {
  check_probability(node, "a node surviving");
  check_probability(process, "a snapshot process surviving");
  if (group_size == 0 || nodes % group_size != 0) {
    throw std::invalid_argument("REFT's equation 5 needs a number of nodes that is a multiple of the group size, not " +
                                std::to_string(nodes) + " nodes in groups of " + std::to_string(group_size));
  }
  const double n = group_size;
  const double group = std::pow(node, n) + n * (1 - node) * std::pow(node, n - 1);
  return std::pow(group, nodes / n) * std::pow(process, nodes);
}

double unprotected_survival(std::uint32_t nodes, double node, double training) {
  check_probability(node, "a node surviving");
  check_probability(training, "a training process surviving");
  return std::pow(node * training, nodes);
}

double days_above(double threshold, const std::function<double(double)>& survival) {
  check_probability(threshold, "a threshold");
  double low = 0;
  double high = 1;
  while (survival(high) >= threshold && high < 1e9) high *= 2;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (survival(middle) >= threshold ? low : high) = middle;
  }
  return low;
}

}  // namespace ckpt::placement
