// Network carries messages between simulated nodes. It delays, loses, repeats and reorders them. A partition cuts off
// some nodes from the others, in one direction or in both. Not thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "core/messages.hpp"
#include "sim/event_queue.hpp"
#include "sim/random.hpp"

namespace ckpt::sim {

using core::NodeId;

class Network {
 public:
  using Deliver = std::function<void(NodeId from, NodeId to, const core::Message& message)>;

  Network(EventQueue& event_queue, Random random, unsigned loss_per_mille, Deliver deliver);

  void send(NodeId from, NodeId to, core::Message message);

  // True if bytes can pass from `from` to `to` now.
  bool open(NodeId from, NodeId to) const;
  bool open_both_ways(NodeId one, NodeId other) const { return open(one, other) && open(other, one); }

  // The time since which both nodes can hear each other. Far in the future if they cannot.
  TimeMs open_both_ways_since(NodeId one, NodeId other) const;
  // The time since which network conditions are so good that messages usually arrive.
  TimeMs fair_since() const { return fair_since_; }

  // Cuts off the nodes `inside`: their messages do not reach other nodes, and unless `one_way`, messages of other nodes
  // do not reach them. Returns a handle for mend().
  int cut(std::set<NodeId> inside, bool one_way);
  void mend(int cut);

  // How bad the whole network is. Holds until the next set_conditions().
  struct NetworkConditions {
    unsigned loss = 0;        // per mille of messages that are lost
    unsigned repeats = 0;     // per mille of messages that are repeated
    TimeMs delay_ms_max = 0;  // longest delay
  };
  void set_conditions(const NetworkConditions& conditions);

  static constexpr TimeMs delay_ms_max = 4000;

  // Messages sent before this call never arrive.
  void forget_everything() { ++era_; }

 private:
  struct Cut {
    std::set<NodeId> inside;
    bool one_way = false;
  };

  static bool separates(const Cut& cut, NodeId one, NodeId other);
  void deliver_after(TimeMs delay_ms, NodeId from, NodeId to, std::shared_ptr<const core::Message> message);
  TimeMs draw_delay();

  EventQueue& event_queue_;
  Random random_;
  const unsigned loss_per_mille_;
  Deliver deliver_;
  NetworkConditions conditions_;
  std::map<int, Cut> cuts_;
  std::vector<std::pair<Cut, TimeMs>> mended_;  // former cuts, and when each was mended
  TimeMs fair_since_ = 0;
  int next_cut_ = 0;
  int era_ = 0;
};

}  // namespace ckpt::sim
