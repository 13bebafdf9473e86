// Many nodes without faults but for a few that are lost at once: what the protocol costs as the job grows.
//
// Every node runs the very core of ckptd, one rank each and two copies of every shard, in virtual time: each hop of a
// message takes 1 ms, a transfer two. Main shards may be shared, and are then cut into a part for each rank. The world
// keeps the truth about every slot and checks as it goes, never the whole of it: that a commit is announced only when
// all its copies are there, that a restore brings the newest one, and that nothing goes backwards. Deterministic but
// for the CPU times.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/types.hpp"

namespace ckpt::sim {

inline constexpr core::NodeId scale_nodes_min = 4;
inline constexpr core::NodeId scale_nodes_max = 200'000;
inline constexpr std::uint32_t scale_sharers_min = 3;  // more than copies: else what they share is not cut

struct ScaleResult {
  core::NodeId nodes = 0;
  std::uint32_t sharers = 1;  // ranks that name one main shard
  core::NodeId lost = 0;      // at once, in the middle
  int commits = 0;            // measured
  // Per commit, in and out, of messages that say something new; and the busiest worker's.
  double messages_leader = 0;
  double bytes_leader = 0;
  double messages_worker = 0;
  double bytes_worker = 0;
  double messages_relay = 0;  // the busiest one's; 0 where there is none
  double bytes_relay = 0;
  double repeats_leader = 0;        // that say nothing new: heartbeats, and answers to them
  int hops = 0;                     // of the longest chain from a capture to the news of its commit
  core::TimeMs commit_ms = 0;       // virtual: from the captures to the last node's news, the slowest one
  core::TimeMs restart_ms = 0;      // virtual: from the ranks' hello to the last one's restore
  std::uint64_t fetched = 0;        // pieces, on that way
  double restart_bytes_leader = 0;  // of messages, in and out, that say something new
  // CPU of the leader's core.
  double restart_cpu_ms = 0;
  double decide_ms = 0;  // the recovery decision
  double place_ms = 0;   // placing the shards of the incarnation that begins, and ordering what its ranks lack
  double commit_cpu_ms = 0;
  double memory_mb = 0;            // heap
  std::uint64_t record_bytes = 0;  // of the longest record in the store
  std::vector<std::string> violations;
};

// `sharers`: 1, or from scale_sharers_min to `nodes`. `progress` is told now and then what goes on.
ScaleResult run_scale(core::NodeId nodes, std::uint32_t sharers,
                      const std::function<void(const std::string&)>& progress);

std::string scale_text(const ScaleResult& result);  // for people, and a last line for programs

}  // namespace ckpt::sim
