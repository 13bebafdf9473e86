// Asks the kernel's OOM killer to kill this process last. Killing it would free no memory, since the arena stays, and
// nobody could use the node's checkpoints until the next agent starts.
#pragma once

#include "agent/log.hpp"

namespace ckpt::agent {

// Logs it if the kernel refuses. `path` is for tests.
void be_ended_last(const Log& log, const std::string& path = "/proc/self/oom_score_adj");

}  // namespace ckpt::agent
