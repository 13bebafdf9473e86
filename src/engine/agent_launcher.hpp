// Starts the node's agent, as a process of its own that outlives this one.
#pragma once

#include "base/clock.hpp"
#include "base/options.hpp"

namespace ckpt::engine {

// Runs "ckptd --detach key=value...", which ends once its agent serves the socket, or with a sentence about why not.
// Returns when an agent serves, or is about to: several ranks may do this at once, and one of the agents gets the
// arena. Throws Failure (CKPT_ERR_NO_AGENT) with that sentence where none will.
void start_agent(const Options& options, Deadline deadline);

}  // namespace ckpt::engine
