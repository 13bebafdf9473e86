// Measures what the protocol costs in large jobs: messages, bytes, and CPU time of the leader. A job of many nodes runs
// in virtual time. Its only fault is the loss of a few nodes at once.
//
// Every node runs the real core, with one rank and two copies of every shard. Each hop of a message takes 1 ms, a
// transfer two. Ranks may share main shards, which are then cut into a part for each rank. The run checks three things
// as it goes: a commit is announced only when all its copies are there, a restore gets the newest commit, and nothing
// goes backwards. All but CPU times is deterministic.
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
  std::uint32_t sharers = 1;  // ranks that name one main shard
  core::NodeId lost = 0;      // lost at once, in the middle of the run
  int commits = 0;            // commits that were measured
  // Messages with news per commit, in and out: the leader's, and those of the busiest worker.
  double messages_leader = 0;
  double bytes_leader = 0;
  double messages_worker = 0;
  double bytes_worker = 0;
  double messages_relay = 0;  // the busiest relay's; 0: there is none
  double bytes_relay = 0;
  double repeats_leader = 0;        // messages without news: heartbeats and their answers
  int hops = 0;                     // on the longest way from a capture to the news of its commit
  core::TimeMs commit_ms = 0;       // virtual: from the captures to the last node's news, the slowest one
  core::TimeMs restart_ms = 0;      // virtual: from the ranks' hello to the last one's restore
  std::uint64_t fetched = 0;        // pieces fetched during the restart
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

// `sharers`: 1, or from scale_sharers_min to `nodes`. `progress` is called now and then with a sentence.
ScaleResult run_scale(core::NodeId nodes, std::uint32_t sharers,
                      const std::function<void(const std::string&)>& progress);

std::string scale_text(const ScaleResult& result);  // for people, and a last line for programs

}  // namespace ckpt::sim
