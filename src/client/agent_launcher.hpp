// Starts the node's agent for an engine that finds none. The agent outlives this process.
#pragma once

#include "base/clock.hpp"
#include "options/options.hpp"

namespace ckpt::client {

// Runs "ckptd --detach key=value...". That program exits once its agent serves the socket. If the agent cannot, the
// program prints a sentence that says why. start_agent() returns when an agent serves or is about to. Several ranks may
// call this at once: only one of their agents gets the arena. If no agent will serve, throws Failure
// (CKPT_ERR_NO_AGENT) with that sentence.
void start_agent(const Options& options, Deadline deadline);

}  // namespace ckpt::client
