// Behavior says what a setting costs a job. A setting (setting.hpp) is a way to protect the job, and how often the job
// captures and writes to storage. While nothing fails, the cost is that captures stall training, and that iterations
// are longer. After a failure, the cost is the time until training goes on, and the work that is done again because the
// restored state is older. failure_rates() says how often each kind of failure comes. From behavior and rates, the
// formulas (model.hpp) and the simulation (simulation.hpp) compute how much time is wasted. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "placement/odds/planner/holdings.hpp"
#include "placement/odds/planner/inputs.hpp"
#include "placement/odds/planner/setting.hpp"

namespace ckpt::planner {

// What fails: a process, a node, or all nodes of a failure domain.
enum class Fault : std::uint8_t { process, node, domain };
inline constexpr std::size_t fault_count = 3;

template <class Value>
using BySource = std::array<Value, source_count>;
template <class Value>
using ByFault = std::array<Value, fault_count>;

constexpr std::size_t index(Fault fault) { return static_cast<std::size_t>(fault); }

struct Behavior {
  // every_s and capture_every_s are in seconds of training: stalls and work that is done again do not count.
  BySource<double> every_s = {0, 0, 0};  // between two states of a source; 0: the source has no states
  double capture_every_s = 0;            // between two stalls; 0: there are no stalls
  double stall_s = 0;                    // how long training stands still for a capture
  double slowdown_share = 0;             // by what share of their length iterations are longer
  // The times from here to refetch_s are in seconds of elapsed time.
  BySource<double> lag_s = {0, 0, 0};        // from when training reaches a state until that state can be restored
  double detection_s = 0;                    // from a failure until somebody acts
  ByFault<BySource<double>> restart_s = {};  // from when somebody acts until training goes on
  double refetch_s = 0;                      // from when training goes on until memory has all pieces again

  double least_iterations = 1;       // fewest iterations between two captures; with fewer, replication falls behind
  double memory_bytes_per_node = 0;  // memory that checkpoints take
  double sent_bytes_per_node = 0;    // what a node sends for one checkpoint
};

Behavior behavior(const Inputs& inputs, const Setting& setting);

// The source with the newest states. The job goes back to this source's state unless lost nodes held a part of it.
Source newest_source(const Behavior& behavior);

// Returns failures per second in the whole job, by kind of failure and by the source from which the state is then
// restored.
ByFault<BySource<double>> failure_rates(const Inputs& inputs, const Holdings& holdings, const Behavior& behavior);

// Returns a sentence that says why the setting does not fit into the nodes' memory, or "" if it fits.
std::string why_too_large(const Inputs& inputs, const Setting& setting, const Behavior& behavior);

}  // namespace ckpt::planner
