// Settings says how large a simulated run is, and how it behaves. All of it is drawn from the run's seed.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/types.hpp"

namespace ckpt::sim {

using core::NodeId;
using core::Rank;
using core::TimeMs;

struct Settings {
  std::uint64_t seed = 0;
  NodeId nodes = 3;      // 2..64
  Rank ranks = 3;        // 1 or 2 per node; if fewer than nodes, the rest are standby nodes
  Rank sharers = 1;      // this many ranks name one main shard (data parallelism)
  bool elastic = false;  // all ranks name one main shard, and the job may restart with another number of ranks
  core::Config core;     // the same for every node except its name and arena
  bool racks = false;    // failure domains of two nodes each
  TimeMs iteration_ms = 200;
  TimeMs update_ms = 10;  // longest time from before_update() to snapshot()
  TimeMs capture_ms = 50;
  TimeMs transfer_ms = 50;      // of one piece between two nodes
  unsigned loss_per_mille = 0;  // of messages, always
  int faults = 4;
  bool is_hard = true;                               // include the faults that are drawn last
  std::optional<std::set<std::size_t>> only_faults;  // their numbers in the plan, from 1; none: all of them
  std::uint64_t shake = 0;                           // changes all random choices but the plan
  // Agents watch the ranks, and faults strike single ranks. Without it, a run is what it was before there was a watch.
  bool watches = false;
  std::uint32_t exchanges = 0;  // communications in an iteration before that of all ranks
  bool has_stages = false;      // pairs of ranks exchange, some pairs more often than others; false: all ranks alike
  TimeMs hang_floor_ms = 2500;
  TimeMs fault_gap_ms = 4000;  // longest time from one fault to the next

  std::string main_shard(Rank rank) const;
  std::uint32_t parts(Rank rank, Rank world_size) const;  // in how many parts its main shard is stored
  std::string private_shard(Rank rank) const;
  // What a job of `world_size` ranks captures, each once: main shards by part, and the private shards of the first
  // `own` ranks.
  std::vector<std::string> shards(Rank world_size, Rank own) const;
};

// The bytes of a part of a main shard whose state is `main`.
std::uint64_t part_bytes(std::uint64_t main, std::uint32_t index, std::uint32_t of);

Settings draw_settings(std::uint64_t seed);

}  // namespace ckpt::sim
