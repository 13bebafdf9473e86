// Finds how a job is best protected on a cluster. It finds the best setting of every scheme (setting.hpp: a scheme is a
// way to protect a job, a setting adds how often), and says which one to recommend. Pure.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "placement/odds/planner/behavior.hpp"
#include "placement/odds/planner/model.hpp"

namespace ckpt::planner {

// A setting, and what it means for the job.
struct Candidate {
  Setting setting;
  Behavior behavior;
  Rates rates = {};
  Appraisal appraisal;
  std::string why_not;  // a sentence that says why this cluster cannot use the setting; "" if it can
  bool fits() const { return why_not.empty(); }
  bool has_figures() const { return setting.own_slots != 0; }  // false if the scheme cannot run on this cluster at all
};

struct Plan {
  std::vector<Candidate> rows;             // each scheme with its best setting
  std::optional<std::size_t> recommended;  // index into `rows`; none if no scheme fits that the options can set
};

// One change to the inputs, and the effective time of the best setting after this change: the share of the elapsed time
// in which the job trains and does not repeat work.
struct Lever {
  std::string change;  // for people
  double effective_time = 0;
};

// Makes plans for clusters with the same nodes, failure domains and replicas. The constructor computes for each scheme
// which losses of nodes its checkpoints survive, in O(nodes).
class Planner {
 public:
  // Throws std::invalid_argument if the inputs are out of range.
  explicit Planner(const Inputs& inputs, std::vector<Scheme> schemes = all_schemes());

  Plan plan() const { return plan(inputs_); }
  // Makes a plan for inputs with other rates, times or memory. Nodes, failure domains and replicas must be those of the
  // constructor's inputs.
  Plan plan(const Inputs& inputs) const;

  // Returns the figures of this setting, without looking for a better one.
  Candidate candidate(const Inputs& inputs, const Setting& setting) const;
  // Returns what the scheme's checkpoints survive. Throws std::invalid_argument if the scheme cannot run on this
  // cluster.
  const Holdings& holdings(const Scheme& scheme) const;

  // Returns changes to the inputs that might raise the effective time, the best first.
  std::vector<Lever> levers() const;

 private:
  Candidate best_candidate(const Inputs& inputs, std::size_t scheme) const;

  Inputs inputs_;
  std::vector<Scheme> schemes_;
  std::vector<std::shared_ptr<const Holdings>> holdings_;  // by scheme; null if the scheme cannot run on this cluster
};

// Returns the settings of `scheme` that are worth trying: combinations of how often to capture and how often to write
// to storage, near the best ones by the formulas. `holdings`: made from `inputs` and `scheme`.
std::vector<Setting> settings_to_try(const Inputs& inputs, const Holdings& holdings, const Scheme& scheme);

}  // namespace ckpt::planner
