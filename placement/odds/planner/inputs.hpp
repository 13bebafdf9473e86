// The inputs of a plan: a cluster, how it fails, and a job on it. Plain values; check() says what is wrong with them.
// Pure.
#pragma once

#include <cstdint>
#include <string_view>

namespace ckpt::planner {

struct Cluster {
  std::uint32_t gpus = 10'000;
  std::uint32_t gpus_per_node = 8;
  double memory_bytes_per_node = 512.0 * (1ull << 30);  // that checkpoints may take
  double pcie_bytes_per_s = 25e9;                       // of one GPU, to host memory
  double network_bytes_per_s = 50e9;                    // of one node
  double storage_bytes_per_s = 20e9;                    // of all nodes together
  std::uint32_t standby_nodes = 0;                      // 0: a lost node is replaced within replace_s, always
  double replace_s = 330;                               // until a new node runs, without standby nodes
  double repair_s = 24 * 3600;                          // until a lost node is a standby node

  std::uint32_t nodes() const { return (gpus + gpus_per_node - 1) / gpus_per_node; }
};

struct Failures {
  double gpu_mtbf_s = 0;           // mean time between failures that stop the job, of one GPU
  double node_share = 0.78;        // share of the failures that take a node's memory; the others end a process
  std::uint32_t domain_nodes = 0;  // nodes of a failure domain; 0: there are none
  double domain_share = 0;         // share of the failures of nodes that take the whole domain
  bool domains_named = true;       // whether the option `domain` is set
};

struct Job {
  double state_bytes = 6.5e12;  // one replica of the state, over all its ranks
  std::uint32_t replicas = 4;   // how many nodes hold each shard on their GPUs
  double iteration_s = 10;
  double idle_share = 0.25;  // of an iteration in which the network is idle
  double detection_s = 15;
  double restart_s = 240;      // processes, communicators and warm-up, without loading state
  double live_restart_s = 15;  // the same where healthy processes stay
};

// What checkpoints cost a job besides waiting for copies. The defaults are the project's own measurements.
struct Overheads {
  double blocking_s = 0.0015;    // that a snapshot blocks if the copy is done before the update
  double copy_share = 0.9;       // of an iteration that a copy may overlap
  double traffic_share = 0.003;  // by which iterations are longer while copies cross the network
  double storing_share = 0.01;   // by which iterations are longer while a checkpoint goes to storage
};

struct Inputs {
  Cluster cluster;
  Failures failures;
  Job job;
  Overheads overheads;
  double gpu_hour_price = 4;
};

// A published failure rate.
struct PublishedRate {
  std::string_view name;
  double gpu_mtbf_s = 0;
  double node_share = 0;
  std::string_view source;
};
const PublishedRate& published_rate(std::string_view name);  // throws std::invalid_argument, listing the names

// Throws std::invalid_argument with a sentence that names the first input out of its range.
void check(const Inputs& inputs);

// What follows from the inputs.
double node_failures_per_s(const Inputs& inputs);     // of all nodes, one at a time
double domain_failures_per_s(const Inputs& inputs);   // of all domains
double process_failures_per_s(const Inputs& inputs);  // of all processes
double node_state_bytes(const Inputs& inputs);        // on the GPUs of one node

// How many standby nodes last 99.9 % of the time, if lost nodes take repair_s each. For failures that come one by one.
std::uint32_t standby_nodes_needed(const Inputs& inputs);

}  // namespace ckpt::planner
