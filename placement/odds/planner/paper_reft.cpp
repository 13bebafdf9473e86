// REFT, section 5 and figure 8: how long parameters survive in memory with probability 0.9.
#include <cmath>
#include <vector>

#include "placement/odds/bounds.hpp"
#include "placement/odds/planner/papers.hpp"
#include "placement/odds/survival.hpp"

namespace ckpt::planner {
namespace {

using placement::Cell;
using placement::Shape;
using placement::weibull_survival;

constexpr std::uint32_t devices = 3072;
constexpr std::uint32_t group_devices = 6;
constexpr double hardware_per_day = 1e-4;
constexpr double software_per_day = 1e-5;
constexpr double threshold = 0.9;

double days_with_reft(double shape) {
  return placement::days_above(threshold, [&](double days) {
    return placement::reft_survival(devices, group_devices, weibull_survival(hardware_per_day, days, shape), 1);
  });
}

double days_without_reft(double shape) {
  return placement::days_above(threshold, [&](double days) {
    return placement::unprotected_survival(devices, weibull_survival(hardware_per_day, days, shape),
                                           weibull_survival(software_per_day, days, shape));
  });
}

// Our figure: the odds of survival for each number of lost devices, weighted with the probability of that number.
double our_survival(double alive) {
  const std::vector<Cell> groups{{Shape::code, group_devices, 2, devices / group_devices}};
  double survival = 0;
  for (std::uint32_t lost = 0; lost <= 120; ++lost) {
    const double log_weight =
        placement::log_choose(devices, lost) + lost * std::log1p(-alive) + (devices - lost) * std::log(alive);
    survival += std::exp(log_weight) * placement::survival_odds(groups, lost).survival;
  }
  return survival;
}

double our_days(double shape) {
  double low = 0.01, high = 1000;
  for (int i = 0; i < 20; ++i) {
    const double middle = std::sqrt(low * high);
    (our_survival(weibull_survival(hardware_per_day, middle, shape)) >= threshold ? low : high) = middle;
  }
  return low;
}

std::string curve(double shape, const char* text) {
  return "Without a printed number: c = " + std::string(text) + ", equation 5 gives " +
         std::to_string(days_with_reft(shape)).substr(0, 5) + " days with REFT, equation 6 " +
         std::to_string(days_without_reft(shape)).substr(0, 4) + " without.";
}

}  // namespace

Review reft_figure_8() {
  constexpr double shape = 1.3;
  Review review{
      "fig8",
      "REFT, figure 8: days for which parameters survive in memory with probability 0.9, c = 1.3",
      "3072 devices, each a node of its own, in groups of 6; 1e-4 hardware and 1e-5 software failures per device "
      "and day; P_re = 1, since the snapshot process outlives the trainer",
      {},
      {("The text calls P_re the probability that a snapshot process fails. As a factor to the power of k it can "
        "only be that of its survival."),
       "The text says that 1 - P_s is the probability of no failure. It is that of a failure.",
       "The caption names equation 3 for the survival rate. It is equation 5.", curve(1.0, "1.0"), curve(1.5, "1.5"),
       curve(2.0, "2.0")}};
  review.numbers.push_back({"with REFT (equation 5)", 16.22, 0.01, days_with_reft(shape), our_days(shape), "days",
                            "the rates are rounded in the caption: a hardware rate of 0.0000997 gives it"});
  review.numbers.push_back({"without REFT (equation 6)", 0.5, 0.05, days_without_reft(shape), not_known, "days",
                            "the text says 'around 0.5'; hardware failures alone would give 0.44"});
  return review;
}

}  // namespace ckpt::planner
