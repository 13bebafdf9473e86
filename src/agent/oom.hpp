// Asks the kernel to end this process last when memory runs out: that would free no memory, since the arena stays, and
// the node's checkpoints would be of use to nobody until the next agent is there.
#pragma once

#include "agent/log.hpp"

namespace ckpt::agent {

// Says in the log where the kernel does not let it. `path` is for tests.
void be_ended_last(const Log& log, const std::string& path = "/proc/self/oom_score_adj");

}  // namespace ckpt::agent
