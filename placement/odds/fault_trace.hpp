// Replays a record of real faults, a fault trace, on a placement. Each time nodes fail, replay() asks whether the
// checkpoint in memory would have survived. A trace has the format of the InfiniteHBD trace: a JSON array of events
// {node_id, event_time (days), event_type: "fault_start" or "fault_end"} in the order of time. Pure functions: they
// take the text and return figures.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "placement/domains.hpp"
#include "placement/placement.hpp"

namespace ckpt::placement {

struct Fault {
  std::uint32_t node = 0;  // a number of the trace: nodes are numbered in the order of their first faults
  double start_days = 0;
  double end_days = 0;  // infinite if the trace does not say
};

struct FaultTrace {
  std::vector<Fault> faults;  // sorted by start
  std::uint32_t nodes = 0;    // how many nodes ever failed
  double span_days = 0;       // time of the last event
};

// Parses a trace. Throws std::invalid_argument, which names the wrong event, if the text is not a trace.
FaultTrace parse_trace(std::string_view text);

// Assigns nodes of a placement to the trace's nodes at random: node n of the trace is node numbering[n] of the
// placement. The seed determines the result. `nodes`: how many nodes the placement has. Throws std::invalid_argument if
// the trace has more.
std::vector<std::uint32_t> random_numbering(const FaultTrace& trace, std::uint32_t nodes, std::uint64_t seed);

// Invents failure domains for a trace that names none: racks of `rack_nodes` nodes. Nodes that failed fill the racks in
// the order of their first faults. So nodes that failed in one burst tend to share a rack, as if the rack had caused
// the burst. The places of nodes that never failed are random.
struct SyntheticRacks {
  std::vector<std::uint32_t> numbering;  // as random_numbering() returns it
  Domains domains;
};
SyntheticRacks synthetic_racks(const FaultTrace& trace, std::uint32_t nodes, std::uint32_t rack_nodes,
                               std::uint64_t seed);

// Returns the trace with each fault moved to a random time. Each fault keeps its node and its length. The result is
// what the trace might look like if faults were independent of each other.
FaultTrace independent_twin(const FaultTrace& trace, std::uint64_t seed);

// At how many moments nodes failed, and how often the placement survived that.
struct Replay {
  std::uint64_t moments = 0;    // moments at which at least one node failed
  std::uint64_t survived = 0;   // how many of these moments left every part a holder
  std::uint32_t most_lost = 0;  // the most nodes whose memory was lost at one moment
};
// Replays the trace. `numbering`: see random_numbering(). The memory of a failed node is lost for `repair_days`. Then a
// replacement has the failed node's pieces again. If `repair_days` is infinite, the memory is lost until the fault
// ends.
Replay replay(const FaultTrace& trace, const Placement& placement, std::span<const std::uint32_t> numbering,
              double repair_days);

// How much more the faults come in bursts than independent faults would. For independent faults, gap_variation and
// daily_dispersion are 1 on average.
struct Burstiness {
  double mean_gap_days = 0;
  double gap_variation = 0;     // standard deviation of the time between faults, over its mean
  double daily_dispersion = 0;  // variance of the number of faults in a day, over its mean
  std::uint32_t most_in_a_day = 0;
  std::uint32_t shared_moments = 0;  // moments at which several nodes failed at once
};
Burstiness burstiness(const FaultTrace& trace);

}  // namespace ckpt::placement
