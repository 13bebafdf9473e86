// What a setting does to a job: what it costs while all is well, what each kind of failure costs, and how often each
// kind comes. The formulas (model.hpp) and the simulation (simulation.hpp) both start from it. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "placement/odds/planner/holdings.hpp"
#include "placement/odds/planner/inputs.hpp"
#include "placement/odds/planner/setting.hpp"

namespace ckpt::planner {

enum class Fault : std::uint8_t { process, node, domain };
inline constexpr std::size_t fault_count = 3;

template <class Value>
using BySource = std::array<Value, source_count>;
template <class Value>
using ByFault = std::array<Value, fault_count>;

constexpr std::size_t index(Fault fault) { return static_cast<std::size_t>(fault); }

struct Behavior {
  // In seconds of training, so without stalls and what is redone.
  BySource<double> every_s = {0, 0, 0};  // between two states of this source; 0: it has none
  double capture_every_s = 0;            // between two stalls; 0: none
  double stall_s = 0;
  double slowdown_share = 0;  // by which iterations are longer
  // In seconds.
  BySource<double> lag_s = {0, 0, 0};  // from a state until it can be restored
  double detection_s = 0;
  ByFault<BySource<double>> restart_s = {};  // from detection until training goes on
  double refetch_s = 0;                      // from then until memory is protected again

  double least_iterations = 1;       // between two captures; more often, replication does not keep up
  double memory_bytes_per_node = 0;  // that checkpoints take
  double sent_bytes_per_node = 0;    // per checkpoint
};

Behavior behavior(const Inputs& inputs, const Setting& setting);

// The source that failures use as long as it is left.
Source newest_source(const Behavior& behavior);

// How often each kind of failure comes, and from where the state comes back then. Per second.
ByFault<BySource<double>> failure_rates(const Inputs& inputs, const Holdings& holdings, const Behavior& behavior);

// Why the setting does not fit into the nodes' memory, as a sentence. "" if it does.
std::string why_too_large(const Inputs& inputs, const Setting& setting, const Behavior& behavior);

}  // namespace ckpt::planner
