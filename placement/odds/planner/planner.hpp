// Finds the best setting of every scheme on a cluster, and the one to recommend. Pure.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "placement/odds/planner/behavior.hpp"
#include "placement/odds/planner/model.hpp"

namespace ckpt::planner {

// One scheme at its best.
struct Candidate {
  Setting setting;
  Behavior behavior;
  Rates rates = {};
  Appraisal appraisal;
  std::string why_not;  // why it cannot be set on this cluster; "" if it can
  bool fits() const { return why_not.empty(); }
  bool has_figures() const { return setting.own_slots != 0; }  // not if the cluster cannot have the scheme at all
};

struct Plan {
  std::vector<Candidate> rows;
  std::optional<std::size_t> recommended;  // a row; none if nothing that can be set today fits
};

// What else would raise the effective time, by one change to the inputs.
struct Lever {
  std::string change;
  double effective_time = 0;
};

// Plans for clusters of one shape: what each scheme loses is worked out once, in O(nodes).
class Planner {
 public:
  // Throws std::invalid_argument if the inputs are out of range.
  explicit Planner(const Inputs& inputs, std::vector<Scheme> schemes = all_schemes());

  Plan plan() const { return plan(inputs_); }
  // With other rates, times or memory: the nodes, failure domains and replicas must be those of the constructor.
  Plan plan(const Inputs& inputs) const;

  // The setting of a row's scheme as it stands, with everything that follows from it.
  Candidate candidate(const Inputs& inputs, const Setting& setting) const;
  const Holdings& holdings(const Scheme& scheme) const;

  // The changes that help most, the best first.
  std::vector<Lever> levers() const;

 private:
  Candidate best_candidate(const Inputs& inputs, std::size_t scheme) const;

  Inputs inputs_;
  std::vector<Scheme> schemes_;
  std::vector<std::shared_ptr<const Holdings>> holdings_;  // by scheme; null if the cluster cannot have it
};

// The settings of a scheme that are worth trying: how often to capture, and how often to write to storage.
std::vector<Setting> settings_to_try(const Inputs& inputs, const Holdings& holdings, const Scheme& scheme);

}  // namespace ckpt::planner
