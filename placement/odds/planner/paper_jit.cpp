// Just-In-Time Checkpointing (EuroSys'24), section 5 and tables 3, 4, 5 and 8.
#include <array>
#include <cmath>

#include "placement/odds/planner/model.hpp"
#include "placement/odds/planner/papers.hpp"

namespace ckpt::planner {
namespace {

constexpr double jit_failures_per_s = 2e-3 / 86'400;  // of one GPU
constexpr std::array<double, 3> gpu_counts = {4, 1024, 8192};

struct Digits {
  double value;
  double unit;  // one unit of the last printed digit
};

struct Model {
  const char* name;
  double checkpoint_s, restore_s, minibatch_s;  // table 4
  double table_3_percent;                       // JIT-C, printed as a percentage
  std::array<Digits, 3> per_hour;
  std::array<Digits, 3> periodic_percent;
  std::array<Digits, 3> user_level_percent;
};

constexpr std::array<Model, 4> models = {{
    {"BERT-L-PT",
     5.0,
     9.9,
     0.418,
     0.0076,
     {{{0.34, 0.01}, {5.54, 0.01}, {15.6, 0.1}}},
     {{{0.096, 0.001}, {1.53, 0.01}, {4.5, 0.1}}},
     {{{0.75, 0.01}, {0.77, 0.01}, {0.94, 0.01}}}},
    {"BERT-B-FT",
     1.4,
     8.8,
     0.416,
     0,
     {{{0.65, 0.01}, {10.47, 0.01}, {29.62, 0.01}}},
     {{{0.05, 0.01}, {0.83, 0.01}, {2.41, 0.01}}},
     {{{0.23, 0.01}, {0.26, 0.01}, {0.41, 0.01}}}},
    {"GPT2-S",
     3.8,
     7.2,
     0.629,
     0.0024,
     {{{0.39, 0.01}, {6.35, 0.01}, {17.98, 0.01}}},
     {{{0.08, 0.01}, {1.34, 0.01}, {3.78, 0.01}}},
     {{{0.24, 0.01}, {0.26, 0.01}, {0.38, 0.01}}}},
    {"GPT2-8B",
     18.8,
     28.6,
     2.953,
     0,
     {{{0.17, 0.01}, {2.85, 0.01}, {8.08, 0.01}}},
     {{{0.18, 0.01}, {2.96, 0.01}, {8.24, 0.01}}},
     {{{0.0003, 0.0001}, {0.07, 0.01}, {0.56, 0.01}}}},
}};

// Table 5, on eight V100.
struct Transparent {
  const char* name;
  double minibatch_s, overhead_s;
  std::array<Digits, 3> percent;
};
constexpr std::array<Transparent, 2> transparent_models = {{
    {"BERT-B-FT", 0.279, 0, {{{0.69, 0.01}, {0.69, 0.01}, {0.69, 0.01}}}},
    {"GPT2-S", 0.270, 0.001, {{{0.69, 0.01}, {0.69, 0.01}, {0.7, 0.1}}}},
}};

double as_fraction(double wasted) { return wasted / (1 + wasted); }  // equation 6

// Our renewal form, for a job that always goes back to the same source.
double renewal_percent(Source source, double every_s, double stall_s, double slowdown, double restart_s, double gpus) {
  Behavior what;
  what.every_s[index(source)] = every_s;
  what.capture_every_s = every_s;
  what.stall_s = stall_s;
  what.slowdown_share = slowdown;
  what.restart_s[index(Fault::process)][index(source)] = restart_s;
  Rates rates = {};
  rates[index(Fault::process)][index(source)] = gpus * jit_failures_per_s;
  return 100 * (1 - appraise(what, rates).effective_time);
}

std::string at(const char* name, const char* what, double gpus) {
  return std::string(name) + ", " + what + ", N = " + std::to_string(static_cast<int>(gpus));
}

void add_periodic(const Model& model, std::size_t i, Review& review) {
  const double gpus = gpu_counts[i], failures_per_s = gpus * jit_failures_per_s;
  const double per_s = best_frequency_per_s(failures_per_s, model.checkpoint_s);
  const double wasted = 2 * std::sqrt(failures_per_s * model.checkpoint_s / 2) + failures_per_s * model.restore_s;
  review.numbers.push_back(
      {at(model.name, "c*", gpus), model.per_hour[i].value, model.per_hour[i].unit, 3600 * per_s, not_known, "/h"});
  Printed found{at(model.name, "periodic", gpus),
                model.periodic_percent[i].value,
                model.periodic_percent[i].unit,
                100 * as_fraction(wasted),
                renewal_percent(Source::storage, 1 / per_s, model.checkpoint_s, 0, model.restore_s, gpus),
                "%"};
  if (!found.agrees() && std::abs(100 * wasted - found.printed) <= found.reading_error)
    found.explanation = "the printed number is w* (equation 5), not the fraction w_f = w / (1 + w)";
  review.numbers.push_back(found);
}

// Equation 7, with the overhead of table 3.
double user_level(const Model& model, double gpus, double overhead) {
  return as_fraction(jit_failures_per_s * model.checkpoint_s + overhead +
                     gpus * jit_failures_per_s * (model.restore_s + model.minibatch_s / 2));
}

void add_user_level(const Model& model, std::size_t i, Review& review) {
  const double gpus = gpu_counts[i], overhead = model.table_3_percent / 100;
  const Digits printed = model.user_level_percent[i];
  Printed found{at(model.name, "user-level JIT", gpus),
                printed.value,
                printed.unit,
                100 * user_level(model, gpus, overhead),
                renewal_percent(Source::replica, model.minibatch_s, 0,
                                overhead + jit_failures_per_s * model.checkpoint_s, model.restore_s, gpus),
                "%"};
  const double other = 100 * user_level(model, gpus, model.table_3_percent);
  if (!found.agrees()) {
    found.explanation = model.table_3_percent > 0 && std::abs(other - printed.value) <= printed.unit
                            ? "table 3's percentage was taken for a fraction"
                            : "no overhead that the paper prints gives it: table 3 says 0 %, table 4 says 0*";
  }
  review.numbers.push_back(found);
}

// Equation 8.
void add_transparent(const Transparent& model, std::size_t i, Review& review) {
  const double gpus = gpu_counts[i], overhead = model.overhead_s / model.minibatch_s;
  const double wasted = overhead + gpus * jit_failures_per_s * model.minibatch_s / 2;
  Printed found{at(model.name, "transparent JIT", gpus),
                model.percent[i].value,
                model.percent[i].unit,
                100 * as_fraction(wasted),
                renewal_percent(Source::replica, model.minibatch_s, 0, overhead, 0, gpus),
                "%"};
  if (!found.agrees())
    found.explanation = "no overhead that the paper prints gives it: table 5 says " +
                        std::string(overhead > 0 ? "0.001 s per minibatch, which is 0.37 %" : "0*");
  review.numbers.push_back(found);
}

}  // namespace

Review jit_table_8() {
  Review review{
      "table8",
      "JIT, table 8: wasted GPU time",
      "f = 2e-3 failures per GPU and day; o, r, m of table 4 (user level) and table 5 (transparent); o_jit of "
      "table 3, divided by 100",
      {},
      {"Equation 7 counts the checkpoint after a failure once (f o). All GPUs wait for it, as they do for the "
       "restore (N f r), so it should be N f o: for BERT-L-PT and N = 8192 that is 0.09 % more."}};
  for (std::size_t i = 0; i < gpu_counts.size(); ++i)
    for (const Model& model : models) add_periodic(model, i, review);
  for (std::size_t i = 0; i < gpu_counts.size(); ++i)
    for (const Model& model : models) add_user_level(model, i, review);
  for (std::size_t i = 0; i < gpu_counts.size(); ++i)
    for (const Transparent& model : transparent_models) add_transparent(model, i, review);
  return review;
}

}  // namespace ckpt::planner
