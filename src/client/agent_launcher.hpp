// Starts the node's agent for an engine that finds none. The agent outlives this process.
#pragma once

#include "base/clock.hpp"
#include "options/options.hpp"

namespace ckpt::client {

// Runs "ckptd --detach key=value...". That program exits when its agent serves the socket, or prints a sentence that
// says why not. start_agent() returns when an agent serves or is about to. Several ranks may call this at once: only
// one of their agents gets the arena. Throws Failure (CKPT_ERR_NO_AGENT) with that sentence if no agent will serve.
void start_agent(const Options& options, Deadline deadline);

}  // namespace ckpt::client
