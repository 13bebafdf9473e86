#include "placement/odds/fault_trace.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "placement/odds/recovery_plan.hpp"
#include "placement/odds/sampling.hpp"

namespace ckpt::placement {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(std::size_t event, const std::string& what) {
  throw std::invalid_argument("event " + std::to_string(event) + " of the fault trace " + what);
}

template <typename Value>
Value field(const json& event, std::size_t index, const char* name) {
  const auto found = event.is_object() ? event.find(name) : event.end();
  if (!event.is_object()) refuse(index, "is not a JSON object: " + event.dump());
  if (found == event.end()) refuse(index, "has no " + std::string(name) + ": add it");
  try {
    return found->get<Value>();
  } catch (const json::exception&) {
    refuse(index, "has a " + std::string(name) + " of the wrong type: " + found->dump());
  }
}

class Reader {
 public:
  FaultTrace read(std::string_view text) {
    const json events = json::parse(text, nullptr, false);
    if (events.is_discarded()) throw std::invalid_argument("the fault trace is not JSON: give an array of events");
    if (!events.is_array()) throw std::invalid_argument("the fault trace must be a JSON array of events");
    for (std::size_t i = 0; i < events.size(); ++i) add(events[i], i);
    trace_.nodes = static_cast<std::uint32_t>(numbers_.size());
    return std::move(trace_);
  }

 private:
  void add(const json& event, std::size_t index) {
    const auto id = field<std::string>(event, index, "node_id");
    const auto type = field<std::string>(event, index, "event_type");
    const auto time_days = field<double>(event, index, "event_time");
    if (!(time_days >= trace_.span_days)) {
      refuse(index, "is at " + std::to_string(time_days) +
                        " days, earlier than the event before it: sort the events by event_time");
    }
    trace_.span_days = time_days;
    if (type == "fault_start") {
      const auto number = numbers_.emplace(id, static_cast<std::uint32_t>(numbers_.size())).first->second;
      open_[id].push_back(trace_.faults.size());
      trace_.faults.push_back({number, time_days, std::numeric_limits<double>::infinity()});
    } else if (type == "fault_end") {
      auto& open = open_[id];
      if (open.empty())
        refuse(index, "ends a fault of node " + id +
                          ", but no fault of that node is open: add its fault_start event, or remove this event");
      trace_.faults[open.front()].end_days = time_days;
      open.erase(open.begin());
    } else {
      refuse(index, "has the event_type '" + type + "': it must be fault_start or fault_end");
    }
  }

  FaultTrace trace_;
  std::unordered_map<std::string, std::uint32_t> numbers_;
  std::unordered_map<std::string, std::vector<std::size_t>> open_;  // faults without an end, the oldest first
};

// Draws `count` different numbers below `nodes`, in random order.
std::vector<std::uint32_t> draw(std::uint32_t count, std::uint32_t nodes, Random& random) {
  std::vector<std::uint32_t> numbers(nodes);
  std::iota(numbers.begin(), numbers.end(), 0);
  for (std::uint32_t i = 0; i < count; ++i) std::swap(numbers[i], numbers[i + random_below(random, nodes - i)]);
  numbers.resize(count);
  return numbers;
}

void check_fits(const FaultTrace& trace, std::uint32_t nodes) {
  if (trace.nodes > nodes) {
    throw std::invalid_argument("the fault trace names " + std::to_string(trace.nodes) +
                                " nodes, but the placement has only " + std::to_string(nodes) +
                                ": ask for as many nodes as the trace names");
  }
}

}  // namespace

FaultTrace parse_trace(std::string_view text) { return Reader().read(text); }

std::vector<std::uint32_t> random_numbering(const FaultTrace& trace, std::uint32_t nodes, std::uint64_t seed) {
  check_fits(trace, nodes);
  Random random(seed);
  return draw(trace.nodes, nodes, random);
}

SyntheticRacks synthetic_racks(const FaultTrace& trace, std::uint32_t nodes, std::uint32_t rack_nodes,
                               std::uint64_t seed) {
  check_fits(trace, nodes);
  if (rack_nodes == 0) throw std::invalid_argument("a rack needs at least one node, not 0");
  Random random(seed);
  auto numbering = draw(trace.nodes, nodes, random);
  std::sort(numbering.begin(), numbering.end());
  std::vector<std::uint32_t> rack_of(nodes);
  for (std::uint32_t node = 0; node < nodes; ++node) rack_of[node] = node / rack_nodes;
  return {std::move(numbering), Domains::flat(rack_of)};
}

FaultTrace independent_twin(const FaultTrace& trace, std::uint64_t seed) {
  Random random(seed);
  FaultTrace twin = trace;
  for (auto& fault : twin.faults) {
    const double start_days = random_share(random) * trace.span_days;
    fault.end_days += start_days - fault.start_days;
    fault.start_days = start_days;
  }
  std::sort(twin.faults.begin(), twin.faults.end(),
            [](const Fault& a, const Fault& b) { return a.start_days < b.start_days; });
  return twin;
}

Replay replay(const FaultTrace& trace, const Placement& placement, std::span<const std::uint32_t> numbering,
              double repair_days) {
  check_fits(trace, placement.nodes());
  const auto back_days = [&](const Fault& fault) {
    return std::isinf(repair_days) ? fault.end_days : fault.start_days + repair_days;
  };
  Replay result;
  LostNodes lost(placement.nodes());
  std::vector<Fault> down;
  for (auto fault = trace.faults.begin(); fault != trace.faults.end();) {
    const double now_days = fault->start_days;
    std::erase_if(down, [&](const Fault& earlier) { return back_days(earlier) <= now_days; });
    for (; fault != trace.faults.end() && fault->start_days == now_days; ++fault) down.push_back(*fault);
    lost.clear();
    for (const auto& each : down) lost.add(numbering[each.node]);
    ++result.moments;
    result.survived += survives(placement, lost) ? 1 : 0;
    result.most_lost = std::max(result.most_lost, static_cast<std::uint32_t>(lost.list().size()));
  }
  return result;
}

Burstiness burstiness(const FaultTrace& trace) {
  Burstiness result;
  if (trace.faults.size() < 2) return result;
  std::vector<std::uint32_t> in_day(static_cast<std::size_t>(trace.span_days) + 1, 0);
  std::map<double, std::uint32_t> at;
  for (const auto& fault : trace.faults) {
    ++in_day[static_cast<std::size_t>(fault.start_days)];
    ++at[fault.start_days];
  }
  for (const auto& [time, count] : at) result.shared_moments += count > 1 ? 1 : 0;

  double sum_squares = 0;
  const auto gaps = static_cast<double>(trace.faults.size() - 1);
  result.mean_gap_days = (trace.faults.back().start_days - trace.faults.front().start_days) / gaps;
  for (std::size_t i = 1; i < trace.faults.size(); ++i) {
    const double off = trace.faults[i].start_days - trace.faults[i - 1].start_days - result.mean_gap_days;
    sum_squares += off * off;
  }
  result.gap_variation = std::sqrt(sum_squares / gaps) / result.mean_gap_days;

  const auto days = static_cast<double>(in_day.size());
  const double mean = static_cast<double>(trace.faults.size()) / days;
  double daily_squares = 0;
  for (const auto count : in_day) daily_squares += (count - mean) * (count - mean);
  result.daily_dispersion = daily_squares / days / mean;
  result.most_in_a_day = *std::max_element(in_day.begin(), in_day.end());
  return result;
}

}  // namespace ckpt::placement
