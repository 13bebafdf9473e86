// FailureSource gives a simulation its failures: at random, or from a fault trace (fault_trace.hpp). Pure. The same
// seed gives the same failures on every platform.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "placement/odds/fault_trace.hpp"
#include "placement/odds/planner/behavior.hpp"

namespace ckpt::planner {

struct Failure {
  double at_s = 0;  // infinite: there is no further failure
  Fault fault = Fault::process;
  std::vector<std::uint32_t> nodes;  // nodes whose memory is lost
  double repaired_at_s = 0;          // from when on these nodes can be standby nodes
};

// Times are in seconds since the simulation began.
class FailureSource {
 public:
  FailureSource() = default;
  virtual ~FailureSource() = default;
  FailureSource(const FailureSource&) = delete;
  FailureSource& operator=(const FailureSource&) = delete;
  // Returns the next failure, in the order of time. The reference stays valid until the next call.
  virtual const Failure& next() = 0;
};

// Makes failures that come at a constant rate, independent of each other. next() takes O(1).
std::unique_ptr<FailureSource> exponential_failures(const Inputs& inputs, std::uint64_t seed);

// Each node's time between failures has a Weibull distribution with the mean of `inputs`. All nodes are new at the
// start. With a shape below 1, failures of new nodes come early and in bursts. next() takes O(log nodes). Throws
// std::invalid_argument unless the shape is from 0.1 to 20.
std::unique_ptr<FailureSource> weibull_failures(const Inputs& inputs, double shape, std::uint64_t seed);

struct TraceScale {
  std::uint32_t trace_nodes = 0;  // nodes of the cluster that the trace was taken from, also those that never failed
  std::uint32_t nodes = 0;        // nodes of the cluster to simulate
  double repair_s = 0;            // how long a fault lasts if the trace does not say
};
// Replays the faults of a trace again and again. If the cluster to simulate is larger than the trace's cluster, it gets
// several copies of the trace, each for other nodes and begun at a random moment. If the cluster to simulate is
// smaller, it gets only the faults of some of the trace's nodes.
std::unique_ptr<FailureSource> trace_failures(const placement::FaultTrace& trace, const TraceScale& scale,
                                              std::uint64_t seed);

// Returns the mean time between two failures of the same GPU, in seconds, as the trace shows it. Throws
// std::invalid_argument if the trace has too few faults for that, or more nodes than `trace_nodes`.
double trace_gpu_mtbf_s(const placement::FaultTrace& trace, std::uint32_t trace_nodes, std::uint32_t gpus_per_node);

}  // namespace ckpt::planner
