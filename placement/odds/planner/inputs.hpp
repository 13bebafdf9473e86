// The inputs of a plan: a cluster, how it fails, and a job on it. Plain values; check() says what is wrong with them.
// Pure.
#pragma once

#include <cstdint>
#include <string_view>

namespace ckpt::planner {

struct Cluster {
  std::uint32_t gpus = 10'000;
  std::uint32_t gpus_per_node = 8;
  double memory_bytes_per_node = 512.0 * (1ull << 30);  // memory that checkpoints may take
  double pcie_bytes_per_s = 25e9;                       // from one GPU to host memory
  double network_bytes_per_s = 50e9;                    // how fast one node can send
  double storage_bytes_per_s = 20e9;                    // how fast all nodes together can write to storage
  std::uint32_t standby_nodes = 0;                      // 0: a new node replaces each lost one within replace_s
  double replace_s = 330;       // from ordering a new node until it runs; only used without standby nodes
  double repair_s = 24 * 3600;  // from a node's loss until it can serve as a standby node

  std::uint32_t nodes() const { return (gpus + gpus_per_node - 1) / gpus_per_node; }
};

struct Failures {
  double gpu_mtbf_s = 0;           // mean time between two failures of the same GPU; each stops the job
  double node_share = 0.78;        // share of failures that lose a node's memory; the other failures end only a process
  std::uint32_t domain_nodes = 0;  // how many nodes a failure domain has; 0: there are no failure domains
  double domain_share = 0;         // share of the losses of memory in which a whole failure domain is lost
  bool domains_named = true;       // true if the option `domain` is set on the nodes
};

struct Job {
  double state_bytes = 6.5e12;  // size of one replica of the state, over all ranks
  std::uint32_t replicas = 4;   // how many nodes hold each shard on their GPUs
  double iteration_s = 10;
  double idle_share = 0.25;    // share of an iteration in which the network is idle
  double detection_s = 15;     // from a failure until somebody acts
  double restart_s = 240;      // to start processes and communicators and to warm up, without loading state
  double live_restart_s = 15;  // like restart_s, if the healthy processes need not start again
};

// What checkpoints cost a job besides waiting for copies. The defaults are the project's own measurements.
struct Overheads {
  double blocking_s = 0.0015;    // how long a snapshot blocks training if its copy ends before the update
  double copy_share = 0.9;       // share of an iteration in which the copy may run beside training
  double traffic_share = 0.003;  // by what share iterations are longer while copies cross the network
  double storing_share = 0.01;   // by what share iterations are longer while a checkpoint goes to storage
};

struct Inputs {
  Cluster cluster;
  Failures failures;
  Job job;
  Overheads overheads;
  double gpu_hour_price = 4;  // in any currency
};

// A published failure rate. gpu_mtbf_s and node_share are those of Failures.
struct PublishedRate {
  std::string_view name;
  double gpu_mtbf_s = 0;
  double node_share = 0;
  std::string_view source;  // the publication and its figures, for people
};
// Returns the published rate of this name. Throws std::invalid_argument, which lists the names, if there is none.
const PublishedRate& published_rate(std::string_view name);

// Checks the inputs. Throws std::invalid_argument, which names the first input that is out of its range.
void check(const Inputs& inputs);

// Figures that follow from the inputs.
double node_failures_per_s(const Inputs& inputs);     // losses of a single node, in the whole cluster
double domain_failures_per_s(const Inputs& inputs);   // losses of a failure domain, in the whole cluster
double process_failures_per_s(const Inputs& inputs);  // failures that end only a process, in the whole job
double node_state_bytes(const Inputs& inputs);        // the state on the GPUs of one node

// How many standby nodes are enough for 99.9 % of the time, if the repair of a lost node takes repair_s. Nodes of a
// failure domain count as if they failed one by one.
std::uint32_t standby_nodes_needed(const Inputs& inputs);

}  // namespace ckpt::planner
