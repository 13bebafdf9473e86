#include "placement/odds/planner/inputs.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace ckpt::planner {
namespace {

constexpr double hour_s = 3600;
constexpr double day_s = 24 * hour_s;

constexpr std::array<PublishedRate, 3> known_rates = {{
    {"llama3", 54 * day_s * 16'384 / 419, 0.78,
     "Llama 3: 419 unexpected interruptions in 54 days of 16,384 GPUs, 78 % of them hardware"},
    {"bytedance", 28 * day_s * 12'288 / 100, 0.78,
     "MegaScale: over 100 recoveries in several weeks (read as four) of 12,288 GPUs; share of hardware as Llama 3"},
    {"opt175b", day_s * 992 / 2, 0.78, "OPT-175B: about 2 failures a day of 992 GPUs; share of hardware as Llama 3"},
}};

struct Range {
  const char* name;
  double value;
  double low;
  double high;
  const char* unit;
};

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.10g", value);
  return text.data();
}

void check_range(const Range& range) {
  if (range.value >= range.low && range.value <= range.high) return;
  throw std::invalid_argument(std::string(range.name) + " must be from " + number(range.low) + " to " +
                              number(range.high) + range.unit + ", not " + number(range.value));
}

void check_counts(const Cluster& cluster, const Job& job) {
  for (const Range& range : {Range{"gpus", double(cluster.gpus), 1, 1e6, ""},
                             Range{"gpus-per-node", double(cluster.gpus_per_node), 1, 1024, ""},
                             Range{"standby", double(cluster.standby_nodes), 0, 1e6, " nodes"},
                             Range{"replicas", double(job.replicas), 1, 1e6, ""}})
    check_range(range);
  if (job.replicas > cluster.nodes())
    throw std::invalid_argument(std::to_string(job.replicas) +
                                " replicas need as many nodes, but the cluster has only " +
                                std::to_string(cluster.nodes()) + ": give fewer replicas or more gpus");
}

void check_shares(const Inputs& in) {
  for (const Range& range : {Range{"node-share", in.failures.node_share, 0, 1, ""},
                             Range{"domain-share", in.failures.domain_share, 0, 1, ""},
                             Range{"idle", in.job.idle_share, 0.001, 1, " of an iteration"},
                             Range{"blocking", in.overheads.blocking_s, 0, 1e4, " seconds"},
                             Range{"copy-share", in.overheads.copy_share, 0, 1, ""},
                             Range{"traffic-share", in.overheads.traffic_share, 0, 10, ""},
                             Range{"storing-share", in.overheads.storing_share, 0, 10, ""}})
    check_range(range);
  if (in.failures.domain_share > 0 && in.failures.domain_nodes == 0)
    throw std::invalid_argument(
        "domain-share is given without domain-nodes: give the number of nodes of a failure domain, too");
}

void check_sizes(const Cluster& cluster, const Job& job) {
  for (const Range& range : {Range{"memory", cluster.memory_bytes_per_node, 0, 1e18, " bytes per node"},
                             Range{"pcie", cluster.pcie_bytes_per_s, 1, 1e18, " bytes per second"},
                             Range{"network", cluster.network_bytes_per_s, 1, 1e18, " bytes per second"},
                             Range{"storage-rate", cluster.storage_bytes_per_s, 1, 1e18, " bytes per second"},
                             Range{"state", job.state_bytes, 1, 1e18, " bytes"}})
    check_range(range);
}

void check_times(const Inputs& in) {
  for (const Range& range : {Range{"mtbf", in.failures.gpu_mtbf_s / hour_s, 1e-3, 1e12, " hours of a GPU"},
                             Range{"iteration", in.job.iteration_s, 1e-4, 1e6, " seconds"},
                             Range{"detection", in.job.detection_s, 0, 1e6, " seconds"},
                             Range{"restart", in.job.restart_s, 0, 1e6, " seconds"},
                             Range{"live-restart", in.job.live_restart_s, 0, 1e6, " seconds"},
                             Range{"replace", in.cluster.replace_s, 0, 1e7, " seconds"},
                             Range{"repair", in.cluster.repair_s / hour_s, 0, 1e5, " hours"},
                             Range{"price", in.gpu_hour_price, 0, 1e6, " per GPU-hour"}})
    check_range(range);
}

double failures_per_s(const Inputs& inputs) { return inputs.cluster.gpus / inputs.failures.gpu_mtbf_s; }

}  // namespace

const PublishedRate& published_rate(std::string_view name) {
  std::string names;
  for (const PublishedRate& rate : known_rates) {
    if (rate.name == name) return rate;
    names += (names.empty() ? "" : ", ") + std::string(rate.name);
  }
  throw std::invalid_argument("there is no published failure rate '" + std::string(name) + "': choose one of " + names);
}

void check(const Inputs& inputs) {
  check_counts(inputs.cluster, inputs.job);
  check_times(inputs);
  check_sizes(inputs.cluster, inputs.job);
  check_shares(inputs);
}

double node_failures_per_s(const Inputs& in) {
  return failures_per_s(in) * in.failures.node_share * (1 - in.failures.domain_share);
}

double domain_failures_per_s(const Inputs& in) {
  return failures_per_s(in) * in.failures.node_share * in.failures.domain_share;
}

double process_failures_per_s(const Inputs& in) { return failures_per_s(in) * (1 - in.failures.node_share); }

double node_state_bytes(const Inputs& in) { return in.job.state_bytes * in.job.replicas / in.cluster.nodes(); }

// The number of nodes in repair has a Poisson distribution. Adds up its terms until they cover 99.9 %.
std::uint32_t standby_nodes_needed(const Inputs& in) {
  const double domain_nodes = std::min(in.failures.domain_nodes, in.cluster.nodes());
  const double mean = (node_failures_per_s(in) + domain_failures_per_s(in) * domain_nodes) * in.cluster.repair_s;
  double log_term = -mean, within = std::exp(log_term);
  std::uint32_t nodes = 0;
  while (within < 0.999 && nodes < in.cluster.nodes()) {
    ++nodes;
    log_term += std::log(mean / nodes);
    within += std::exp(log_term);
  }
  return nodes;
}

}  // namespace ckpt::planner
