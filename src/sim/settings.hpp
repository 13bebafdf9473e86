// Settings says how large a simulated job is, and how a run of it goes. draw_settings() draws all of it from the seed.
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
  NodeId nodes = 3;      // 2 to 64
  Rank ranks = 3;        // 1 or 2 per node; if fewer than nodes, the other nodes have no ranks
  Rank sharers = 1;      // how many ranks have the same main shard (data parallelism)
  bool elastic = false;  // all ranks have one main shard, and the job may restart with another number of ranks
  // Each rank has a main shard of its own, and the job may restart with another number of ranks, or with as many that
  // split the state in another way: their main shards have other names. They take over the shards. Not together with
  // `elastic`.
  bool resizes = false;
  // Nodes repeat updates instead of fetching main shards, where they can. Each rank has a main shard of its own then.
  bool recomputes = false;
  core::Config core;   // the same for every node, except the node's number, arena and domain
  bool racks = false;  // true: failure domains of two nodes each
  TimeMs iteration_ms = 200;
  TimeMs update_ms = 10;  // longest time from before_update() to snapshot()
  TimeMs capture_ms = 50;
  TimeMs transfer_ms = 50;      // for one piece from one node to another
  unsigned loss_per_mille = 0;  // share of messages that are lost even without a fault
  int faults = 4;
  bool is_hard = true;                               // false: leaves out the harder faults
  std::optional<std::set<std::size_t>> only_faults;  // only these numbers of the plan, from 1; none: all faults
  std::uint64_t shake = 0;                           // another number changes all random choices except the plan
  // True: agents watch the ranks, and faults may make a single rank hang, stop or die.
  bool watches = false;
  std::uint32_t exchanges = 0;  // communications in an iteration before that of all ranks
  bool has_stages = false;      // pairs of ranks exchange, some pairs more often than others; false: all ranks alike
  TimeMs hang_floor_ms = 2500;
  // True: a suspicion halts the job, and ranks capture main shards only every core.capture_every iterations. Counts
  // only in runs in which agents watch the ranks.
  bool halts = false;
  bool can_halt() const { return watches && halts; }
  // True: healthy ranks rejoin a halted job in their processes, and the launcher starts only the others anew. Counts
  // only in runs in which a suspicion halts the job.
  bool rejoins = false;
  bool can_rejoin() const { return can_halt() && rejoins; }
  // A mistake that trainers make on purpose, so that a test can see a check fail.
  enum class Defect : std::uint8_t { none, updates_in_a_halt, keeps_changed_tensors };
  Defect defect = Defect::none;
  TimeMs fault_gap_ms = 4000;  // longest time from one fault to the next

  std::string main_shard(Rank rank, unsigned split = 0) const;  // `split`: not 0 only if `resizes`
  std::uint32_t parts(Rank rank, Rank world_size) const;        // into how many parts the rank's main shard is cut
  std::string private_shard(Rank rank) const;
  // The shards that the rank takes over if the job has `now` ranks, and ranks with these main shards captured the
  // checkpoint. Only if `resizes`.
  std::set<std::string> taken_by(Rank rank, const std::vector<std::string>& main_shards, Rank now) const;
  // The names of what a job captures whose ranks have these main shards: the parts of main shards, and the private
  // shards of the first `own` ranks. Each name is listed once.
  std::vector<std::string> shards(const std::vector<std::string>& main_shards, Rank own) const;
};

// The number that stands for the bytes of a part, if `main` stands for the bytes of the whole main shard.
std::uint64_t part_bytes(std::uint64_t main, std::uint32_t index, std::uint32_t of);

Settings draw_settings(std::uint64_t seed);

}  // namespace ckpt::sim
