// Where a simulation's failures come from: at random, or from a trace. Pure; random from a seed, the same on every
// platform.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "placement/odds/fault_trace.hpp"
#include "placement/odds/planner/behavior.hpp"

namespace ckpt::planner {

struct Failure {
  double at_s = 0;  // infinite: no further one comes
  Fault fault = Fault::process;
  std::vector<std::uint32_t> nodes;  // whose memory is lost
  double repaired_at_s = 0;          // when these nodes can be standby nodes
};

class FailureSource {
 public:
  FailureSource() = default;
  virtual ~FailureSource() = default;
  FailureSource(const FailureSource&) = delete;
  FailureSource& operator=(const FailureSource&) = delete;
  // The next failure, never before the one before it. It stays valid until the next call.
  virtual const Failure& next() = 0;
};

// Failures at a constant rate, independent of each other, in O(1) each.
std::unique_ptr<FailureSource> exponential_failures(const Inputs& inputs, std::uint64_t seed);

// Each node's time between failures has a Weibull distribution with the mean of `inputs`. All nodes are new at the
// start. With a shape below 1, failures of new nodes come early and in bursts. In O(log nodes) each.
std::unique_ptr<FailureSource> weibull_failures(const Inputs& inputs, double shape, std::uint64_t seed);

// The faults of a trace, over and over. A cluster larger than the trace's gets several copies of it, each with other
// nodes and begun at a random moment; a smaller one gets a part of its nodes.
struct TraceScale {
  std::uint32_t trace_nodes = 0;  // of the cluster that the trace was taken from, with those that never failed
  std::uint32_t nodes = 0;        // of the cluster to simulate
  double repair_s = 0;            // for faults that do not end in the trace
};
std::unique_ptr<FailureSource> trace_failures(const placement::FaultTrace& trace, const TraceScale& scale,
                                              std::uint64_t seed);

// The failures that a trace has per GPU: mean time between them, in seconds. Throws std::invalid_argument if the trace
// has too few faults to say so, or more nodes than `trace_nodes`.
double trace_gpu_mtbf_s(const placement::FaultTrace& trace, std::uint32_t trace_nodes, std::uint32_t gpus_per_node);

}  // namespace ckpt::planner
