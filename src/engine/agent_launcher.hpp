// Starts the node's agent, as a process of its own that outlives this one.
#pragma once

#include <string>

#include "base/clock.hpp"
#include "base/options.hpp"

namespace ckpt::engine {

// Runs "ckptd --detach key=value...", which ends once its agent serves the socket, or with a sentence about why not.
// Returns that sentence, "" if it said that all is well. Several ranks may do this at once: one of the agents gets the
// arena, the others give up. Throws Failure (CKPT_ERR_NO_AGENT) where the program cannot be run at all.
std::string start_agent(const Options& options, Deadline deadline);

}  // namespace ckpt::engine
