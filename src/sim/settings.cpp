#include "sim/settings.hpp"

#include <algorithm>

#include "sim/random.hpp"

namespace ckpt::sim {

namespace {

// Draws the number of nodes. Small clusters find most bugs in the least time. One run in ten is larger, one in a
// hundred large.
NodeId draw_nodes(Random& random) {
  const std::uint64_t draw = random.below(100);
  if (draw == 0) return static_cast<NodeId>(random.between(17, 64));
  return static_cast<NodeId>(draw < 10 ? random.between(7, 16) : random.between(2, 6));
}

}  // namespace

std::string Settings::main_shard(Rank rank, unsigned split) const {
  if (elastic) return "model0";
  if (split != 0) return "rank" + std::to_string(rank) + ".split" + std::to_string(split);
  return sharers == 1 ? "rank" + std::to_string(rank) + ".main" : "model" + std::to_string(rank / sharers);
}

std::string Settings::private_shard(Rank rank) const { return "rank" + std::to_string(rank) + ".private"; }

// Does what the core should do: by default, a shared shard is cut into one part per rank, and `copies` ranks capture
// each part.
std::uint32_t Settings::parts(Rank rank, Rank world_size) const {
  const bool may_cut = !core.strategy || placement::is_sharded(*core.strategy);
  const Rank first = rank / sharers * sharers;
  const std::uint32_t naming = elastic ? world_size : std::min(sharers, world_size - first);
  const std::uint32_t stored =
      core.strategy == placement::Strategy::sharded ? 1 : std::min(core.protection.copies, naming);
  return may_cut && stored < naming ? naming : 1;
}

std::uint64_t part_bytes(std::uint64_t main, std::uint32_t index, std::uint32_t of) {
  return of == 1 ? main : main ^ mix(hash_of("part"), index);
}

std::vector<std::string> Settings::shards(const std::vector<std::string>& main_shards, Rank own) const {
  std::vector<std::string> all;
  const auto world_size = static_cast<Rank>(main_shards.size());
  for (Rank rank = 0; rank < world_size; ++rank) {
    if (elastic ? rank == 0 : rank % sharers == 0) {
      for (const std::string& part : core::parts_of(main_shards[rank], parts(rank, world_size))) all.push_back(part);
    }
    if (rank < own) all.push_back(private_shard(rank));
  }
  return all;
}

std::set<std::string> Settings::taken_by(Rank rank, const std::vector<std::string>& main_shards, Rank now) const {
  std::set<std::string> taken;
  for (Rank other = rank; other < main_shards.size(); other += now)
    taken.insert({main_shards[other], private_shard(other)});
  if (taken.empty()) taken.insert(private_shard(0));
  return taken;
}

Settings draw_settings(std::uint64_t seed) {
  Random random(mix(seed, hash_of("settings")));
  Settings settings;
  settings.seed = seed;
  settings.nodes = draw_nodes(random);
  if (settings.nodes > 2 && random.chance(200)) {
    settings.ranks = static_cast<Rank>(random.between(2, settings.nodes - 1));
  } else {
    settings.ranks = settings.nodes * (settings.nodes <= 8 && random.chance(300) ? 2 : 1);
  }
  if (random.chance(400))
    settings.sharers =
        static_cast<Rank>(random.between(2, std::min<Rank>(settings.nodes <= 16 ? 4 : 12, settings.ranks)));

  const std::uint64_t draw = random.below(10);
  settings.core.protection.copies = draw == 0 ? 1 : draw < 8 ? 2 : 3;
  if (random.chance(400)) settings.core.strategy = placement::all_strategies[random.below(6)];
  if (settings.core.strategy == placement::Strategy::sharded) settings.core.protection.copies = 1;
  settings.racks = random.chance(300);
  if (random.chance(400)) {
    settings.core.storage = settings.core.storage_writes = true;
    ++settings.core.local_slots;
    ++settings.core.local_slots_max;
    settings.core.storage_every = random.between(0, 8);
    settings.core.storage_interval_ms = settings.core.storage_every == 0 ? 3000 : 0;
  }
  if (Random(mix(seed, hash_of("slots"))).chance(200)) settings.core.local_slots = settings.core.local_slots_max;
  settings.core.report_ms = 250;
  settings.core.node_timeout_ms = 2000;
  settings.core.lease_ms = 2000;
  settings.core.node_wait_ms = 5000;

  settings.iteration_ms = random.between(150, 600);
  settings.update_ms = random.chance(800) ? random.between(3, settings.iteration_ms / 10) : 2;
  settings.capture_ms = random.between(5, settings.iteration_ms);
  settings.transfer_ms = random.chance(200) ? random.between(200, 900) : random.between(5, 150);
  settings.loss_per_mille = random.chance(300) ? static_cast<unsigned>(random.between(1, 50)) : 0;
  settings.faults = static_cast<int>(random.between(2, 6));
  settings.fault_gap_ms = random.chance(300) ? 500 : 4000;
  if (random.chance(350)) {
    auto& protection = settings.core.protection;
    protection.members = static_cast<std::uint32_t>(random.between(2, 8));
    protection.rows = static_cast<std::uint32_t>(random.between(1, std::min(3u, protection.members - 1)));
    if (random.chance(700)) protection.copies = 1;  // otherwise there are both copies and parity
  }
  // If the leader examines few pieces per ms, it reconciles only now and then, as it does with very many nodes.
  Random reconciling(mix(seed, hash_of("settling")));
  if (reconciling.chance(300)) settings.core.pieces_per_ms = static_cast<std::uint32_t>(reconciling.between(1, 8));
  // In half of the runs, a few nodes are enough for relays.
  Random relaying(mix(seed, hash_of("relaying")));
  if (relaying.chance(500)) settings.core.relay_from = static_cast<std::uint32_t>(relaying.between(1, 4));
  // In most of the runs, machines without ranks are standby nodes.
  settings.core.standby = settings.ranks < settings.nodes && Random(mix(seed, hash_of("standby"))).chance(800);
  settings.elastic = settings.sharers >= settings.ranks && Random(mix(seed, hash_of("elastic"))).chance(800);
  settings.resizes = settings.sharers == 1 && Random(mix(seed, hash_of("resizes"))).chance(300);
  settings.recomputes = settings.sharers == 1 && settings.core.protection.copies > 1 &&
                        Random(mix(seed, hash_of("recomputes"))).chance(350);
  if (settings.recomputes) settings.iteration_ms *= 2;  // else slots are free for every second snapshot only
  Random watching(mix(seed, hash_of("watching")));
  settings.watches = watching.chance(500);
  settings.exchanges = static_cast<std::uint32_t>(watching.below(3));
  settings.has_stages = settings.exchanges != 0 && watching.chance(500);
  settings.hang_floor_ms = watching.between(8, 25) * 100;
  Random halting(mix(seed, hash_of("halting")));
  settings.halts = settings.watches && halting.chance(600);
  if (!settings.halts) return settings;
  settings.core.halts = true;
  settings.core.capture_every = static_cast<std::uint32_t>(halting.between(1, 6));
  settings.core.halt_decision_ms = 1500;
  settings.core.halt_ms = 8000;
  settings.rejoins = Random(mix(seed, hash_of("rejoining"))).chance(600);
  return settings;
}

}  // namespace ckpt::sim
