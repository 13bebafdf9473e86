// The agent's log. It is passed to whoever writes to it and is never global. Thread-safe. A slow reader never blocks a
// writer.
#pragma once

#include <spdlog/logger.h>

#include <memory>

namespace ckpt::agent {

using Log = std::shared_ptr<spdlog::logger>;

// Where lines go in addition to the file.
enum class Foreground { no, stderr_too };

// Appends to `path`, and makes the file again if somebody removes it. Keeps at most two files of a few MiB, since they
// may lie in memory. Floods of similar lines are counted (flood_gate.hpp). Lines of level critical go only to the file,
// because the program prints them itself. Throws Failure.
Log open_log(const std::string& path, Foreground foreground = Foreground::no);
// For tests.
Log silent_log();

}  // namespace ckpt::agent
