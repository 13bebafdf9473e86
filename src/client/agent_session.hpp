// What the agent has given this engine: the control page and, once reserved, the slots. A new agent gives a new
// session.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "arena/control.hpp"
#include "arena/segment.hpp"

namespace ckpt::client {

// One segment for each part of the rank's share, in order, then one for its private shard.
using Slots = std::vector<arena::Segment>;

// Immutable. Shared by the training thread, which captures, and the watcher, which reads the control page.
struct AgentSession {
  std::shared_ptr<arena::Control> control;
  std::shared_ptr<Slots> slots;  // null: not reserved yet
};

}  // namespace ckpt::client
