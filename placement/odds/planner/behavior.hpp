// Behavior says what a setting does to a job: what it costs while nothing fails, and what each kind of failure costs.
// failure_rates() says how often each kind comes. The formulas (model.hpp) and the simulation (simulation.hpp) both
// start from these. Pure.
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
  // The first two count seconds of training. Stalls do not count, nor does work that is done again.
  BySource<double> every_s = {0, 0, 0};  // between two states of a source; 0: the source has no states
  double capture_every_s = 0;            // between two stalls; 0: there are no stalls
  double stall_s = 0;                    // how long training stands still for a capture
  double slowdown_share = 0;             // by what share iterations are longer
  // Seconds of elapsed time.
  BySource<double> lag_s = {0, 0, 0};        // from a state until it can be restored
  double detection_s = 0;                    // from a failure until somebody acts
  ByFault<BySource<double>> restart_s = {};  // from then until training goes on
  double refetch_s = 0;                      // from then until all pieces are in memory again

  double least_iterations = 1;       // the fewest between two captures with which replication keeps up
  double memory_bytes_per_node = 0;  // that checkpoints take
  double sent_bytes_per_node = 0;    // per checkpoint
};

Behavior behavior(const Inputs& inputs, const Setting& setting);

// The source with the newest states. A failure goes back to it if the lost nodes leave it whole.
Source newest_source(const Behavior& behavior);

// The failures per second: for each kind of failure, and for each source that the state comes back from afterwards.
ByFault<BySource<double>> failure_rates(const Inputs& inputs, const Holdings& holdings, const Behavior& behavior);

// Says in a sentence why the setting does not fit into the nodes' memory. "" if it does.
std::string why_too_large(const Inputs& inputs, const Setting& setting, const Behavior& behavior);

}  // namespace ckpt::planner
