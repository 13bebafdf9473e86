// What the agent has given this engine: the control page and, once reserved, the slots. A new agent gives a new one.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "arena/control.hpp"
#include "arena/segment.hpp"

namespace ckpt::engine {

// A segment for each part of the rank's share, in order, and then one for its private shard.
using Slots = std::vector<arena::Segment>;

// Shared by the training thread, which captures, and the watcher, which listens to the control page. Immutable.
struct AgentSession {
  std::shared_ptr<arena::Control> control;
  std::shared_ptr<Slots> slots;  // null: not reserved yet
};

}  // namespace ckpt::engine
