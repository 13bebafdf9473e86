// What the agent has given this engine: the control page and, once reserved, the slots. A new agent gives a new one.
#pragma once

#include <memory>
#include <optional>

#include "arena/control.hpp"
#include "arena/segment.hpp"

namespace ckpt::engine {

struct Slots {
  arena::Segment main;
  arena::Segment private_;
};

// Shared by the training thread, which captures, and the watcher, which listens to the control page. Immutable.
struct Session {
  std::shared_ptr<arena::Control> control;
  std::shared_ptr<Slots> slots;  // null: not reserved yet
};

}  // namespace ckpt::engine
