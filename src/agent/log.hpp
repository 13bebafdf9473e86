// The agent's log: passed to whoever writes to it, never global. Thread-safe.
#pragma once

#include <spdlog/logger.h>

#include <memory>

namespace ckpt::agent {

using Log = std::shared_ptr<spdlog::logger>;

// Appends to `path`; two files of a few MiB at most, since it may lie in memory. Throws Failure.
Log open_log(const std::string& path);
// For tests.
Log silent_log();

}  // namespace ckpt::agent
