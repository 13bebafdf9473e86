#include "cli/placement/placement_trace.hpp"

#include <array>
#include <cmath>
#include <cstdio>

#include "cli/table.hpp"

namespace ckpt::cli {
namespace {

using nlohmann::json;
using placement::FaultTrace;
using placement::Placement;

std::string decimals(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

// A kind of replay: its name in JSON and in the table, and the moments that one numbering did not survive.
struct Column {
  const char* key;
  const char* head;
  double lost_moments = 0;
};

std::vector<Column> replay_all(const FaultTrace& trace, const TraceStudy& study, const placement::Request& request) {
  placement::Request blind_request = request;
  blind_request.domains = nullptr;
  const Placement blind = place(blind_request);
  std::vector<Column> columns{{"lost_random", "trace"}, {"lost_independent", "independent"}};
  if (request.domains != nullptr) columns.push_back({"lost_domains", "trace, domains"});
  if (study.rack_nodes > 0) {
    columns.push_back({"lost_racks_unaware", "racks, unaware"});
    columns.push_back({"lost_racks_aware", "racks, aware"});
  }
  for (std::uint32_t i = 0; i < study.numberings; ++i) {
    const std::uint64_t seed = study.seed + i;
    std::size_t column = 0;
    const auto add = [&](const FaultTrace& faults, const Placement& map, const std::vector<std::uint32_t>& numbering) {
      const auto result = replay(faults, map, numbering, study.repair_days);
      columns[column++].lost_moments += static_cast<double>(result.moments - result.survived) / study.numberings;
    };
    const auto numbering = random_numbering(trace, request.nodes, seed);
    add(trace, blind, numbering);
    add(independent_twin(trace, seed), blind, numbering);
    if (request.domains != nullptr) add(trace, place(request), numbering);
    if (study.rack_nodes > 0) {
      const auto racks = synthetic_racks(trace, request.nodes, study.rack_nodes, seed);
      placement::Request aware = request;
      aware.domains = &racks.domains;
      add(trace, blind, racks.numbering);
      add(trace, place(aware), racks.numbering);
    }
  }
  return columns;
}

std::string head_text(const FaultTrace& trace, const placement::Replay& first, const placement::Burstiness& burst,
                      const TraceStudy& study) {
  std::string text = "trace: " + std::to_string(trace.faults.size()) + " faults of " + std::to_string(trace.nodes) +
                     " nodes in " + decimals(trace.span_days, 0) + " days, at " + std::to_string(first.moments) +
                     " moments; " + std::to_string(burst.shared_moments) + " of them hit several nodes at once\n";
  text += "bursts: the standard deviation of the time between faults is " + decimals(burst.gap_variation, 2) +
          " times its mean, the variance of faults per day " + decimals(burst.daily_dispersion, 2) +
          " times their mean (independent faults: 1 and 1); " + std::to_string(burst.most_in_a_day) +
          " faults in the worst day\n";
  text += std::isinf(study.repair_days) ? "a node's memory is lost until its fault ends"
                                        : "a node's memory is lost for " + decimals(study.repair_days * 24, 2) + " h";
  return text + "; at most " + std::to_string(first.most_lost) + " nodes are without memory at once\n";
}

}  // namespace

Result study_trace(const FaultTrace& trace, const TraceStudy& study,
                   const std::vector<placement::Strategy>& strategies) {
  Result result;
  const auto burst = burstiness(trace);
  const auto any = placement::place({.strategy = placement::Strategy::ring, .nodes = study.request.nodes, .copies = 1});
  const auto first = replay(trace, any, random_numbering(trace, study.request.nodes, study.seed), study.repair_days);
  result.json = {{"faults", trace.faults.size()},
                 {"nodes", trace.nodes},
                 {"span_days", trace.span_days},
                 {"moments", first.moments},
                 {"most_lost", first.most_lost},
                 {"numberings", study.numberings},
                 {"repair_days", std::isinf(study.repair_days) ? json() : json(study.repair_days)},
                 {"synthetic_rack_nodes", study.rack_nodes},
                 {"burstiness",
                  {{"mean_gap_days", burst.mean_gap_days},
                   {"gap_variation", burst.gap_variation},
                   {"daily_dispersion", burst.daily_dispersion},
                   {"most_in_a_day", burst.most_in_a_day},
                   {"shared_moments", burst.shared_moments}}},
                 {"strategies", json::object()}};

  std::vector<Row> rows;
  for (const auto strategy : strategies) {
    placement::Request request = study.request;
    request.strategy = strategy;
    const auto columns = replay_all(trace, study, request);
    const auto load = place(request).largest_load();
    Row row{std::string(name(strategy)), decimals(load.sent, 2), decimals(load.stored, 2)};
    Row head{"strategy", "sent", "stored"};
    json& entry = result.json["strategies"][std::string(name(strategy))];
    entry = {{"bytes_sent_per_node", load.sent}, {"bytes_stored_per_node", load.stored}};
    for (const auto& column : columns) {
      head.emplace_back(column.head);
      row.push_back(decimals(column.lost_moments, 2));
      entry[column.key] = column.lost_moments;
    }
    if (rows.empty()) rows.push_back(head);
    rows.push_back(row);
  }
  result.text = head_text(trace, first, burst, study) + "\nmoments at which memory would not have sufficed, of " +
                std::to_string(first.moments) + " (mean of " + std::to_string(study.numberings) + " numberings)\n" +
                (study.rack_nodes > 0 ? "racks are SYNTHETIC, of " + std::to_string(study.rack_nodes) +
                                            " nodes each: filled in the order of first faults\n"
                                      : "") +
                table(rows, "  ");
  return result;
}

}  // namespace ckpt::cli
