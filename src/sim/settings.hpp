// One run's shape, drawn from its seed.
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
  Rank ranks = 3;        // 1 or 2 per node, or fewer than nodes: the rest are spares
  Rank sharers = 1;      // so many ranks name one main shard (data parallelism)
  bool elastic = false;  // all ranks name one, and the job may restart with another number of them
  core::Config core;     // as every node is configured, but for its name and arena
  bool racks = false;    // two nodes each, as failure domains
  TimeMs iteration_ms = 200;
  TimeMs update_ms = 10;  // up to so long, from before_update() to snapshot()
  TimeMs capture_ms = 50;
  TimeMs transfer_ms = 50;      // of one piece between two nodes
  unsigned loss_per_mille = 0;  // of messages, always
  int faults = 4;
  bool is_hard = true;                               // with the faults that are drawn last
  std::optional<std::set<std::size_t>> only_faults;  // of the plan, by number from 1; none: all of them
  std::uint64_t shake = 0;                           // other chance, with the same plan
  TimeMs fault_gap_ms = 4000;                        // up to so long between a fault and the next

  std::string main_shard(Rank rank) const;
  std::uint32_t parts(Rank rank, Rank world_size) const;  // in which its main shard is stored
  std::string private_shard(Rank rank) const;
  // What a job of `world_size` ranks captures, each once: main shards by part, and private shards of the first `own`.
  std::vector<std::string> shards(Rank world_size, Rank own) const;
};

// The bytes of a part of a main shard whose state is `main`, and back.
std::uint64_t part_bytes(std::uint64_t main, std::uint32_t index, std::uint32_t of);

Settings draw_settings(std::uint64_t seed);

}  // namespace ckpt::sim
