// Real failures: a trace of faults, replayed over a placement. At each moment at which nodes fail, would memory have
// sufficed? The format is that of the InfiniteHBD trace: a JSON array of events {node_id, event_time (days),
// event_type: "fault_start" or "fault_end"} in the order of time. Pure: the text goes in, figures come out.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "placement/domains.hpp"
#include "placement/placement.hpp"

namespace ckpt::placement {

struct Fault {
  std::uint32_t node = 0;  // of the trace: in the order of first faults
  double start_days = 0;
  double end_days = 0;  // infinite where the trace does not say
};

struct FaultTrace {
  std::vector<Fault> faults;  // in the order of their starts
  std::uint32_t nodes = 0;    // that ever failed
  double span_days = 0;       // until the last event
};

// Throws std::invalid_argument, naming the event, on text that is no such trace.
FaultTrace parse_trace(std::string_view text);

// numbering[trace node] = node of a placement: seeded, at random. Throws when the trace has more nodes.
std::vector<std::uint32_t> random_numbering(const FaultTrace& trace, std::uint32_t nodes, std::uint64_t seed);

// SYNTHETIC failure domains, for traces that name none: racks of `rack_nodes` consecutive numbers, into which the
// trace's nodes are put in the order of their first fault, so that nodes that failed in one burst tend to share a rack;
// nodes that never failed stand among them at random. It is what bursts would look like if racks were behind them.
struct SyntheticRacks {
  std::vector<std::uint32_t> numbering;
  Domains domains;
};
SyntheticRacks synthetic_racks(const FaultTrace& trace, std::uint32_t nodes, std::uint32_t rack_nodes,
                               std::uint64_t seed);

// The same faults of the same nodes for as long, each at a random time: what the trace would be if faults were
// independent.
FaultTrace independent_twin(const FaultTrace& trace, std::uint64_t seed);

// A node's memory is lost from its fault until `repair_days` later, when a replacement holds its pieces again; with an
// infinite `repair_days`, until the fault's end.
struct Replay {
  std::uint64_t moments = 0;   // at which one node or more failed
  std::uint64_t survived = 0;  // of them: every part still had a holder
  std::uint32_t most_lost = 0;
};
Replay replay(const FaultTrace& trace, const Placement& placement, std::span<const std::uint32_t> numbering,
              double repair_days);

// How far from independent. For independent faults, both ratios are 1 on average.
struct Burstiness {
  double mean_gap_days = 0;
  double gap_variation = 0;     // standard deviation of the time between faults, over its mean
  double daily_dispersion = 0;  // variance of the number of faults in a day, over its mean
  std::uint32_t most_in_a_day = 0;
  std::uint32_t shared_moments = 0;  // at which several nodes failed at once
};
Burstiness burstiness(const FaultTrace& trace);

}  // namespace ckpt::placement
