#include "placement/odds/planner/behavior.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace ckpt::planner {
namespace {

constexpr double usable_share = 0.9;      // share of an idle span in which chunks are sent
constexpr double gradient_share = 0.125;  // of the state: 2 of 16 bytes per parameter, for mixed precision with Adam
constexpr double held_slots = 2;          // slots for each piece that a node stores for others

// What a node handles per checkpoint. The unit is the state on the node's GPUs.
struct Volumes {
  double captured = 1;
  double sent = 0;
  double stored_for_others = 0;
};

Volumes volumes(const Inputs& in, const Scheme& scheme) {
  const double replicas = in.job.replicas;
  const placement::Protection& protection = scheme.protection;
  Volumes volume;
  // If several nodes hold the same shard, as many of them capture each part of it as there are copies.
  volume.captured = std::min<double>(protection.copies, replicas) / replicas;
  const double copies_sent = std::max(0.0, protection.copies - replicas) / replicas;
  volume.sent = copies_sent + protection.rows / replicas;
  volume.stored_for_others = copies_sent;
  if (protection.has_parity())
    volume.stored_for_others +=
        extra_stored(placement::Protection::of_parity(protection.members, protection.rows)) / replicas;
  if (scheme.capture == Capture::gradients) volume.captured *= gradient_share, volume.sent = 0;
  return volume;
}

bool is_late(const Inputs& in, const Scheme& scheme) {
  return scheme.capture == Capture::late || (scheme.capture == Capture::automatic && in.job.replicas > 1);
}

// The time in which a new node gets its state from a peer's memory, or from several peers to decode it.
double fetch_s(const Inputs& in, const Scheme& scheme) {
  const placement::Protection& protection = scheme.protection;
  const double reads = protection.copies > 1 || !protection.has_parity() ? 1 : protection.members - protection.rows;
  return reads * node_state_bytes(in) / in.cluster.network_bytes_per_s;
}

double gpu_copy_s(const Inputs& in) {
  return node_state_bytes(in) / in.cluster.gpus_per_node / in.cluster.pcie_bytes_per_s;
}

double write_s(const Inputs& in) { return in.job.state_bytes / in.cluster.storage_bytes_per_s; }

void set_restarts(const Inputs& in, const Setting& setting, Behavior& what) {
  const double new_node_s = in.cluster.standby_nodes > 0 ? 0 : in.cluster.replace_s;
  const double fetched_s = fetch_s(in, setting.scheme);
  for (const Fault fault : {Fault::process, Fault::node, Fault::domain}) {
    const bool is_node_lost = fault != Fault::process;
    const double moved_s = is_node_lost ? new_node_s : 0;
    const double read_s = is_node_lost ? fetched_s : gpu_copy_s(in);
    what.restart_s[index(fault)] = {
        in.job.live_restart_s + moved_s + node_state_bytes(in) / in.cluster.network_bytes_per_s,
        in.job.restart_s + moved_s + read_s, in.job.restart_s + moved_s + write_s(in)};
  }
}

Behavior stop_and_write(const Inputs& in, const Setting& setting) {
  Behavior what;
  what.capture_every_s = setting.iterations * in.job.iteration_s;
  what.every_s[index(Source::storage)] = what.capture_every_s;
  what.stall_s = write_s(in);
  return what;
}

Behavior in_memory(const Inputs& in, const Setting& setting) {
  const Volumes volume = volumes(in, setting.scheme);
  const double iteration_s = in.job.iteration_s;
  const double copy_s = volume.captured * gpu_copy_s(in);
  const double send_s = volume.sent * node_state_bytes(in) / in.cluster.network_bytes_per_s;
  const double stretched_s = send_s / (in.job.idle_share * usable_share);
  Behavior what;
  what.least_iterations = std::max(1.0, std::ceil(stretched_s / iteration_s - 1e-9));
  what.capture_every_s = std::max(setting.iterations, what.least_iterations) * iteration_s;
  what.every_s[index(Source::memory)] = what.capture_every_s;
  what.every_s[index(Source::replica)] = is_late(in, setting.scheme) ? iteration_s : 0;
  what.stall_s = in.overheads.blocking_s + std::max(0.0, copy_s - in.overheads.copy_share * iteration_s);
  what.lag_s[index(Source::memory)] = copy_s + stretched_s;
  what.slowdown_share = in.overheads.traffic_share * std::min(1.0, stretched_s / what.capture_every_s);
  if (std::isfinite(setting.storage_every_s)) {
    what.every_s[index(Source::storage)] = std::max(setting.storage_every_s, write_s(in));
    what.lag_s[index(Source::storage)] = write_s(in);
    what.slowdown_share += in.overheads.storing_share * write_s(in) / what.every_s[index(Source::storage)];
  }
  const double slots = setting.own_slots + (std::isfinite(setting.storage_every_s) ? 1 : 0);
  what.memory_bytes_per_node = (slots * volume.captured + held_slots * volume.stored_for_others) * node_state_bytes(in);
  what.sent_bytes_per_node = volume.sent * node_state_bytes(in);
  what.refetch_s = send_s;
  return what;
}

// Nodes that fail before memory is protected again make a chain. Returns the rate of chains that lose too many nodes
// for the source `newest`.
double chain_losses_per_s(double node_failures_per_s, double window_s, const Holdings& holdings, Source newest) {
  const double next = -std::expm1(-node_failures_per_s * window_s);
  double nth_per_s = node_failures_per_s * (1 - next);
  double lost_per_s = 0;
  for (std::uint32_t lost = 1; lost < Holdings::loss_odds_count; ++lost, nth_per_s *= next)
    lost_per_s += nth_per_s * holdings.loss_odds(newest, lost);
  return lost_per_s + nth_per_s / (1 - next);  // longer chains count as losses
}

// The rate of failures after which the source `newest` is lost: by chains of nodes, and by a failure domain and a node
// that fail soon after each other.
double node_losses_per_s(const Inputs& in, const Holdings& holdings, const Behavior& what, Source newest) {
  const double window_s = what.detection_s + what.restart_s[index(Fault::node)][index(newest)] + what.refetch_s;
  const double nodes_per_s = node_failures_per_s(in), domains_per_s = domain_failures_per_s(in);
  const double pairs_per_s =
      domains_per_s * -std::expm1(-nodes_per_s * window_s) + nodes_per_s * -std::expm1(-domains_per_s * window_s);
  const double further_loss = std::max(0.0, holdings.domain_and_node_loss(newest) - holdings.domain_loss(newest));
  return chain_losses_per_s(nodes_per_s, window_s, holdings, newest) + pairs_per_s * further_loss;
}

std::string gib(double bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g GiB", bytes / (1 << 30));
  return text.data();
}

}  // namespace

Behavior behavior(const Inputs& in, const Setting& setting) {
  Behavior what =
      setting.scheme.capture == Capture::stop_and_write ? stop_and_write(in, setting) : in_memory(in, setting);
  what.detection_s = in.job.detection_s;
  set_restarts(in, setting, what);
  return what;
}

Source newest_source(const Behavior& what) {
  if (what.every_s[index(Source::replica)] > 0) return Source::replica;
  return what.every_s[index(Source::memory)] > 0 ? Source::memory : Source::storage;
}

ByFault<BySource<double>> failure_rates(const Inputs& in, const Holdings& holdings, const Behavior& what) {
  const Source newest = newest_source(what);
  ByFault<BySource<double>> rates = {};
  rates[index(Fault::process)][index(newest)] = process_failures_per_s(in);
  auto& node = rates[index(Fault::node)];
  auto& domain = rates[index(Fault::domain)];
  if (newest == Source::storage) {
    node[index(newest)] = node_failures_per_s(in);
    domain[index(newest)] = domain_failures_per_s(in);
    return rates;
  }
  const double beyond_per_s = std::min(node_failures_per_s(in), node_losses_per_s(in, holdings, what, newest));
  node[index(Source::storage)] = beyond_per_s;
  node[index(newest)] += node_failures_per_s(in) - beyond_per_s;
  // Checkpoints in memory may survive losses that replicas do not survive.
  const double of_replicas = holdings.domain_loss(newest), of_memory = holdings.domain_loss(Source::memory);
  domain[index(Source::storage)] = domain_failures_per_s(in) * std::min(of_replicas, of_memory);
  domain[index(Source::memory)] += domain_failures_per_s(in) * std::max(0.0, of_replicas - of_memory);
  domain[index(newest)] += domain_failures_per_s(in) * (1 - of_replicas);
  return rates;
}

std::string why_too_large(const Inputs& in, const Setting& setting, const Behavior& what) {
  if (what.memory_bytes_per_node <= in.cluster.memory_bytes_per_node) return "";
  return setting.scheme.name + " needs " + gib(what.memory_bytes_per_node) +
         " of memory on each node, but a node has only " + gib(in.cluster.memory_bytes_per_node);
}

}  // namespace ckpt::planner
