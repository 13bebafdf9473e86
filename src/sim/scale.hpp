// Measures what the protocol costs in large jobs: messages, bytes, and CPU time of the leader. A job of many nodes runs
// in virtual time. Its only fault is the loss of a few nodes at once.
//
// Every node runs the real core, with one rank and two copies of every shard. A message from one node to another takes
// 1 ms, a transfer 2 ms. Ranks may share main shards, which are then cut into one part for each rank. The run checks
// three things: a commit is announced only when all its copies are there, a restore gets the newest commit, and no node
// goes back to an older commit. All figures except CPU times are deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/types.hpp"

namespace ckpt::sim {

inline constexpr core::NodeId scale_nodes_min = 4;
inline constexpr core::NodeId scale_nodes_max = 200'000;
inline constexpr std::uint32_t scale_sharers_min = 3;  // more than copies: otherwise shared shards are not cut

struct ScaleResult {
  core::NodeId nodes = 0;
  std::uint32_t sharers = 1;  // how many ranks have the same main shard
  core::NodeId lost = 0;      // how many nodes are lost at once, in the middle of the run
  int commits = 0;            // how many commits were measured
  // How many messages and bytes a node sends and receives per commit. Heartbeats and their answers are not counted:
  // they bring no news. A worker is neither leader nor relay; these are the figures of the busiest worker and relay.
  double messages_leader = 0;
  double bytes_leader = 0;
  double messages_worker = 0;
  double bytes_worker = 0;
  double messages_relay = 0;  // 0: there is no relay
  double bytes_relay = 0;
  double repeats_leader = 0;        // the leader's messages without news: heartbeats and their answers
  int hops = 0;                     // messages on the longest way from a capture to the news of its commit
  core::TimeMs commit_ms = 0;       // virtual: from the captures until the last node knows of the commit; the slowest
  core::TimeMs restart_ms = 0;      // virtual: from the ranks' hello until the last rank has restored
  std::uint64_t fetched = 0;        // pieces fetched during the restart
  double restart_bytes_leader = 0;  // bytes of the leader's messages with news during the restart, sent and received
  // CPU time of the leader's core.
  double restart_cpu_ms = 0;
  double decide_ms = 0;  // to decide what to restore
  double place_ms = 0;   // to place the shards of the next incarnation, and to order what its ranks lack
  double commit_cpu_ms = 0;
  double memory_mb = 0;            // heap
  std::uint64_t record_bytes = 0;  // size of the longest record in the store
  std::vector<std::string> violations;
};

// `sharers`: 1, or from scale_sharers_min to `nodes`. `progress` is called now and then, with a sentence for people.
ScaleResult run_scale(core::NodeId nodes, std::uint32_t sharers,
                      const std::function<void(const std::string&)>& progress);

std::string scale_text(const ScaleResult& result);  // for people, and a last line for programs

}  // namespace ckpt::sim
