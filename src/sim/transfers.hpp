// Pieces on their way between nodes, and from storage. A transfer pins its source slot, takes its time, and is verified
// on arrival; it fails when either side dies, stops, or is cut off for longer than the transport's patience. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <map>

#include "protocol/events.hpp"
#include "sim/memory.hpp"
#include "sim/timeline.hpp"

namespace ckpt::sim {

class Agent;
struct Machine;
class World;

struct Transfer {
  NodeId to = 0;
  std::uint64_t to_agent = 0;
  protocol::StartFetch order;
  std::uint64_t from_agent = 0;  // while it is served, else 0
  SlotRef source_slot;
  bool flip = false;  // a bit on the wire
};

class Transfers {
 public:
  explicit Transfers(World& world) : world_(world) {}

  void start(Machine& to, Agent& agent, const protocol::StartFetch& order);
  void cancel(NodeId to, std::uint64_t agent, std::uint64_t fetch);
  void agent_died(NodeId node, std::uint64_t agent);
  void forget_everything() { active_.clear(); }

  const std::map<std::uint64_t, Transfer>& active() const { return active_; }
  void flip_bit(std::uint64_t transfer) { active_.at(transfer).flip = true; }

 private:
  void serve(std::uint64_t id, TimeMs waited_ms);
  void arrive(std::uint64_t id, TimeMs waited_ms);
  void read_stored(std::uint64_t id);
  bool flows(const Transfer& transfer) const;
  void stop_serving(Transfer& transfer);
  void end_after(TimeMs delay_ms, std::uint64_t id, protocol::FetchResult result);
  void end(std::uint64_t id, protocol::FetchResult result);

  World& world_;
  std::map<std::uint64_t, Transfer> active_;
  std::uint64_t next_ = 1;
};

}  // namespace ckpt::sim
