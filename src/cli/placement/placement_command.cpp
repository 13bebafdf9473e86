#include "cli/placement/placement_command.hpp"

#include <CLI/CLI.hpp>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>

#include "cli/files.hpp"
#include "cli/placement/placement_plot.hpp"
#include "cli/placement/placement_trace.hpp"
#include "cli/table.hpp"
#include "placement/odds/bounds.hpp"
#include "placement/odds/sampling.hpp"
#include "placement/odds/survival.hpp"

namespace ckpt::cli {
namespace {

using nlohmann::json;
using placement::Domains;
using placement::Placement;
using placement::Strategy;

constexpr std::uint32_t most_rows = 64;  // of a map, on a terminal

// With enough digits to tell it from 0 and from 100 %.
std::string percent(double share, double rest) {
  std::array<char, 64> text{};
  if (rest > 0 && rest < 1e-6) {
    std::snprintf(text.data(), text.size(), "100 %% less %.3g %%", 100 * rest);
  } else {
    std::snprintf(text.data(), text.size(), share > 0 && share < 1e-4 ? "%.3g %%" : "%.4f %%", 100 * share);
  }
  return text.data();
}

std::string shards(double count) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.4g", count);
  return text.data();
}

std::string bound_text(double bound) { return std::isnan(bound) ? "-" : percent(bound, 1 - bound); }

// All results for one strategy.
struct Appraisal {
  Placement placement;
  placement::Odds odds;
  double bound = 0;
  placement::Load most;
  placement::Load least;
  std::optional<placement::Estimate> simulated;
};

Appraisal appraise(const PlacementOptions& options, Strategy strategy, const Domains* domains) {
  Placement placement =
      placement::place({.strategy = strategy, .nodes = options.nodes, .copies = options.copies, .domains = domains});
  auto odds = placement::survival_odds(placement.pattern(), options.lost);
  const double bound = placement::paper_bound(placement.pattern(), options.lost);
  std::optional<placement::Estimate> simulated;
  if (options.correlation != 0) {
    simulated = sample_survival(placement, {options.lost, options.correlation, domains}, options.trials, options.seed);
  }
  const auto most = placement.largest_load();
  const auto least = placement.smallest_load();
  return {std::move(placement), odds, bound, most, least, simulated};
}

// ---- JSON ----

json range_json(placement::Range range) { return json::array({range.index, range.of}); }

json map_json(const Placement& placement) {
  json result = {{"holders", json::array()}, {"stores", json::array()}, {"sends", json::array()}};
  for (std::uint32_t shard = 0; shard < placement.shards(); ++shard) {
    result["holders"].push_back(placement.shard_holders(shard));
  }
  for (std::uint32_t node = 0; node < placement.nodes(); ++node) {
    json pieces = json::array();
    for (const auto home : placement.stored_by(node)) {
      const auto part = placement.part(home);
      pieces.push_back({{"shard", part.shard}, {"range", range_json(part.range)}});
    }
    result["stores"].push_back(std::move(pieces));
  }
  for (const auto& transfer : placement.transfers()) {
    const auto part = placement.part(transfer.part);
    result["sends"].push_back(
        {{"from", transfer.from}, {"to", transfer.to}, {"shard", part.shard}, {"range", range_json(part.range)}});
  }
  return result;
}

json appraisal_json(const Appraisal& appraisal, const PlacementOptions& options, const Domains* domains) {
  const Placement& placement = appraisal.placement;
  json result = map_json(placement);
  result["strategy"] = name(placement.pattern().strategy());
  result["nodes"] = options.nodes;
  result["copies"] = options.copies;
  result["lost"] = options.lost;
  result["distinct_holder_sets"] = placement.pattern().distinct_holder_sets();
  result["survival_exact"] = appraisal.odds.survival;
  result["loss_exact"] = appraisal.odds.loss;
  if (appraisal.odds.count) {
    result["survival_count"] = {{"survivors", appraisal.odds.count->survivors}, {"total", appraisal.odds.count->total}};
  }
  result["survival_bound"] = std::isnan(appraisal.bound) ? json() : json(appraisal.bound);
  result["bytes_captured_per_node"] = appraisal.most.captured;
  result["bytes_sent_per_node"] = appraisal.most.sent;
  result["bytes_received_per_node"] = appraisal.most.received;
  result["bytes_stored_per_node"] = appraisal.most.stored;
  result["least"] = {{"bytes_received_per_node", appraisal.least.received},
                     {"bytes_stored_per_node", appraisal.least.stored}};
  if (domains != nullptr) {
    json pairs = json::array();
    for (const auto& pair : placement.unseparated()) {
      pairs.push_back({{"nodes", {pair.a, pair.b}}, {"domain", domains->name(pair.domain)}});
    }
    result["unseparated"] = std::move(pairs);
  }
  if (appraisal.simulated) {
    const auto& simulated = *appraisal.simulated;
    result["survival_simulated"] = {
        {"correlation", options.correlation}, {"trials", simulated.trials}, {"seed", options.seed},
        {"survival", simulated.share},        {"low", simulated.low},       {"high", simulated.high}};
  }
  return result;
}

// ---- Text ----

std::string simulated_text(const placement::Estimate& estimate) {
  return percent(estimate.share, 1 - estimate.share) + " (95 %: " + percent(estimate.low, 1 - estimate.low) + " to " +
         percent(estimate.high, 1 - estimate.high) + ")";
}

std::string unseparated_text(const Placement& map, const Domains& domains) {
  const auto& pairs = map.unseparated();
  if (pairs.empty()) return "no two copies share a failure domain\n";
  std::string text = std::to_string(pairs.size()) + " pairs of nodes hold copies of one shard in one failure domain:";
  for (std::size_t i = 0; i < std::min<std::size_t>(pairs.size(), 8); ++i) {
    text += (i == 0 ? " " : ", ") + std::to_string(pairs[i].a) + " and " + std::to_string(pairs[i].b) + " (" +
            domains.name(pairs[i].domain) + ")";
  }
  return text + (pairs.size() > 8 ? ", ...\n" : "\n");
}

std::string map_text(const Placement& placement) {
  const bool in_parts = is_sharded(placement.pattern().strategy());
  std::vector<Row> rows{in_parts ? Row{"shard", "part", "stored by"} : Row{"shard", "stored by"}};
  for (std::uint32_t node = 0; node < std::min(placement.nodes(), most_rows); ++node) {
    const auto part = placement.part(node);
    std::string nodes;
    for (const auto holder : placement.holders(node))
      nodes.append(nodes.empty() ? "" : " ").append(std::to_string(holder));
    Row row{std::to_string(part.shard)};
    if (in_parts) row.push_back(std::to_string(part.range.index + 1) + "/" + std::to_string(part.range.of));
    row.push_back(nodes);
    rows.push_back(row);
  }
  std::string text = table(rows, "  ");
  if (placement.nodes() > most_rows) {
    text += "  and " + std::to_string(placement.nodes() - most_rows) + " more (all with --json)\n";
  }
  return text;
}

std::string appraisal_text(const Appraisal& appraisal, const PlacementOptions& options, const Domains* domains) {
  const auto& [placement, odds, bound, most, least, simulated] = appraisal;
  std::string text = std::string(name(placement.pattern().strategy())) + ", " + std::to_string(options.nodes) +
                     " nodes, " + std::to_string(options.copies) +
                     " copies: " + std::to_string(placement.pattern().distinct_holder_sets()) +
                     " distinct sets of nodes that hold a shard (holder sets)\n";
  text += "a node, in shards per checkpoint: captures " + shards(most.captured) + ", sends " + shards(most.sent) +
          ", receives " + shards(most.received) + ", stores " + shards(most.stored);
  if (most.stored != least.stored) {
    text += " (at most; at least: receives " + shards(least.received) + ", stores " + shards(least.stored) + ")";
  }
  text +=
      "\n" + std::to_string(options.lost) + " lost: recoverable from memory with " + percent(odds.survival, odds.loss);
  if (odds.count) {
    text += ", " + std::to_string(odds.count->survivors) + " of " + std::to_string(odds.count->total) + " cases";
  }
  if (!std::isnan(bound)) text += "; the paper's bound: " + bound_text(bound);
  text += "\n";
  if (simulated) text += "the same with correlated failures: " + simulated_text(*simulated) + "\n";
  if (domains != nullptr) text += unseparated_text(placement, *domains);
  return text + "\n" + map_text(placement);
}

Row comparison_row(const Appraisal& appraisal) {
  Row row{std::string(name(appraisal.placement.pattern().strategy())),
          std::to_string(appraisal.placement.pattern().distinct_holder_sets()),
          shards(appraisal.most.captured),
          shards(appraisal.most.sent),
          shards(appraisal.most.received),
          shards(appraisal.most.stored),
          percent(appraisal.odds.survival, appraisal.odds.loss),
          bound_text(appraisal.bound)};
  if (appraisal.simulated) row.push_back(simulated_text(*appraisal.simulated));
  return row;
}

Result compare(const PlacementOptions& options, const std::vector<Strategy>& strategies, const Domains* domains) {
  Result result;
  result.json = {{"strategies", json::array()}};
  Row head{"strategy", "holder sets", "captured", "sent", "received", "stored", "recoverable", "paper's bound"};
  if (options.correlation != 0) head.emplace_back("correlated failures");
  std::vector<Row> rows{head};
  for (const auto strategy : strategies) {
    const Appraisal one = appraise(options, strategy, domains);
    rows.push_back(comparison_row(one));
    result.json["strategies"].push_back(appraisal_json(one, options, domains));
  }
  result.text =
      std::to_string(options.nodes) + " nodes, " + std::to_string(options.copies) + " copies, " +
      std::to_string(options.lost) +
      " lost; distinct sets of nodes that hold a shard; the most that a node handles, in shards per checkpoint\n" +
      table(rows, "  ");
  return result;
}

Result replay_trace(const PlacementOptions& options, const std::vector<Strategy>& strategies, const Domains* domains) {
  const auto trace = placement::parse_trace(read_file(options.trace_path));
  TraceStudy study;
  study.request = {.nodes = options.nodes, .copies = options.copies, .domains = domains};
  study.repair_days = options.repair_hours < 0 ? std::numeric_limits<double>::infinity() : options.repair_hours / 24;
  study.numberings = options.numberings;
  study.rack_nodes = options.synthetic_racks;
  study.seed = options.seed;
  return study_trace(trace, study, strategies);
}

}  // namespace

CLI::App* add_placement_command(CLI::App& app, PlacementOptions& options, bool& json) {
  CLI::App* command = app.add_subcommand(
      "placement", "Show which nodes would store which pieces, and the odds that the state survives lost nodes");
  command->add_flag("--json", json, "Print JSON");
  command->add_option("--nodes", options.nodes, "Number of nodes")->required();
  command
      ->add_option("--copies", options.copies,
                   "Copies of every shard, including the node's own; for sharded "
                   "strategies, the number of nodes that have the same shard")
      ->capture_default_str();
  command
      ->add_option("--strategy", options.strategy,
                   "group, ring, mixed, cover, sharded, sharded+copy, or all to compare them")
      ->capture_default_str();
  command->add_option("--lost", options.lost, "Nodes lost at once")->capture_default_str();
  command->add_option("--domains", options.domains_path,
                      "File of failure domains: lines \"CHILD PARENT\"; a number is a node, a name a domain");
  command->add_option("--correlation", options.correlation,
                      "Also simulate correlated losses: with this probability, the next lost node is in the failure "
                      "domain of the one lost "
                      "before it");
  command->add_option("--trials", options.trials, "Trials of that simulation")->capture_default_str();
  command->add_option(
      "--trace", options.trace_path,
      "File with a record of real faults, a fault trace, to replay over the placement (docs/protection.md)");
  command->add_option("--repair-hours", options.repair_hours,
                      "Hours until a lost node's pieces are stored again (default: when its fault ends)");
  command->add_option("--synthetic-racks", options.synthetic_racks,
                      "Also replay with SYNTHETIC (invented) racks of this many nodes, which nodes join in the order "
                      "of their first faults");
  command
      ->add_option("--numberings", options.numberings,
                   "Number of random numberings of the trace's nodes to average over")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--seed", options.seed, "Seed of all random choices")->capture_default_str();
  command->add_option("--plot", options.plot_path, "Draw survival against lost nodes: a .png or .svg (needs gnuplot)");
  return command;
}

Result show_placement(const PlacementOptions& options) {
  std::vector<Strategy> strategies(std::begin(placement::all_strategies), std::end(placement::all_strategies));
  const bool all = options.strategy == "all";
  if (!all) strategies = {placement::strategy_named(options.strategy)};
  for (const auto strategy : strategies) placement::Pattern(strategy, options.nodes, options.copies);  // or throw
  std::optional<Domains> parsed;
  if (!options.domains_path.empty()) parsed = Domains::parse(read_file(options.domains_path), options.nodes);
  const Domains* domains = parsed ? &*parsed : nullptr;

  Result result;
  if (all) {
    result = compare(options, strategies, domains);
  } else {
    const Appraisal one = appraise(options, strategies.front(), domains);
    result = {appraisal_text(one, options, domains), appraisal_json(one, options, domains)};
  }
  if (!options.trace_path.empty()) {
    const Result replayed = replay_trace(options, strategies, domains);
    result.text += "\n" + replayed.text;
    result.json["trace"] = replayed.json;
  }
  if (!options.plot_path.empty()) {
    const std::vector<Strategy> drawn{Strategy::group, Strategy::ring, Strategy::mixed, Strategy::cover,
                                      Strategy::sharded_copy};
    draw({options.nodes, options.copies, drawn}, options.plot_path);
    result.text += "\nplot: " + options.plot_path + "\n";
    result.json["plot"] = options.plot_path;
  }
  return result;
}

}  // namespace ckpt::cli
