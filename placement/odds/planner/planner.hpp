// Finds the best setting of every scheme on a cluster, and the one to recommend. Pure.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "placement/odds/planner/behavior.hpp"
#include "placement/odds/planner/model.hpp"

namespace ckpt::planner {

// A scheme with a setting, and what follows from it.
struct Candidate {
  Setting setting;
  Behavior behavior;
  Rates rates = {};
  Appraisal appraisal;
  std::string why_not;  // says in a sentence why this cluster cannot have the setting; "" if it can
  bool fits() const { return why_not.empty(); }
  bool has_figures() const { return setting.own_slots != 0; }  // false if the scheme cannot run on this cluster at all
};

struct Plan {
  std::vector<Candidate> rows;             // each scheme with its best setting
  std::optional<std::size_t> recommended;  // number of a row; none if no scheme that can be set today fits
};

// One change to the inputs, and the effective time that the best setting would then have.
struct Lever {
  std::string change;  // for people
  double effective_time = 0;
};

// Plans for clusters of one shape. The constructor works out what survives which losses, in O(nodes) for each scheme.
class Planner {
 public:
  // Throws std::invalid_argument if the inputs are out of range.
  explicit Planner(const Inputs& inputs, std::vector<Scheme> schemes = all_schemes());

  Plan plan() const { return plan(inputs_); }
  // Plans with other rates, times or memory. Nodes, failure domains and replicas must be those of the constructor.
  Plan plan(const Inputs& inputs) const;

  // Evaluates this setting, without looking for a better one.
  Candidate candidate(const Inputs& inputs, const Setting& setting) const;
  // Throws std::invalid_argument if the scheme cannot run on this cluster.
  const Holdings& holdings(const Scheme& scheme) const;

  // Changes to the inputs that might raise the effective time, the best first.
  std::vector<Lever> levers() const;

 private:
  Candidate best_candidate(const Inputs& inputs, std::size_t scheme) const;

  Inputs inputs_;
  std::vector<Scheme> schemes_;
  std::vector<std::shared_ptr<const Holdings>> holdings_;  // by scheme; null if the scheme cannot run on this cluster
};

// The settings of a scheme that are worth trying: how often to capture, and how often to write to storage.
std::vector<Setting> settings_to_try(const Inputs& inputs, const Holdings& holdings, const Scheme& scheme);

}  // namespace ckpt::planner
