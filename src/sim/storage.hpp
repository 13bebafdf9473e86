// Storage is the simulator's persistent storage, which all nodes share. It has pieces, and knows which checkpoints are
// complete. It outlives every machine. It can be unreachable for a while, and its pieces can be damaged. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/events.hpp"
#include "sim/event_queue.hpp"

namespace ckpt::sim {

using core::NodeId;

class Agent;
struct Machine;
class World;

class Storage {
 public:
  explicit Storage(World& world) : world_(world) {}

  // Requests of agents. The agent gets one event as the answer, if it still lives then.
  void list(Agent& agent);
  void write(Machine& machine, Agent& agent, const core::StartWrite& order);
  void commit(Agent& agent, NodeId node, const core::FinalizeCheckpoint& order);

  bool is_out() const;
  // The digest of the bytes of a piece of a complete checkpoint. 0 if storage does not have the piece.
  std::uint64_t read(const core::PieceInfo& piece) const;

  void outage(TimeMs duration_ms);
  bool damage_newest();  // flips a bit of the newest complete checkpoint; false: there is none
  void clear();

  bool has_step(CheckpointId checkpoint) const { return steps_.contains(checkpoint); }
  // The incarnation of the newest checkpoint with a piece on storage, complete or not. 0: there is no piece.
  std::uint64_t newest_incarnation() const { return pieces_.empty() ? 0 : pieces_.rbegin()->first.incarnation(); }
  bool has_had_step(CheckpointId checkpoint) const { return ever_whole_.contains(checkpoint); }
  // The newest checkpoint that has been complete and undamaged for `for_ms`.
  CheckpointId newest_sound(TimeMs for_ms) const;
  bool is_calm(TimeMs for_ms) const;

 private:
  struct Stored {
    core::PieceInfo info;
    std::uint64_t bytes = 0;
  };
  struct Step {
    std::vector<std::string> shards;
    TimeMs whole_since = 0;
    bool is_damaged = false;
  };
  TimeMs takes_ms();
  void finish_write(NodeId node, std::uint64_t agent, const core::StartWrite& order);

  World& world_;
  std::map<CheckpointId, std::map<std::string, Stored>> pieces_;
  std::map<CheckpointId, Step> steps_;
  std::set<CheckpointId> ever_whole_;
  TimeMs out_until_ = 0;
};

}  // namespace ckpt::sim
