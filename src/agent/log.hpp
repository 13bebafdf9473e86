// The agent's log: passed to whoever writes to it, never global. Thread-safe, and waits for nobody who reads it.
#pragma once

#include <spdlog/logger.h>

#include <memory>

namespace ckpt::agent {

using Log = std::shared_ptr<spdlog::logger>;

// Where lines go besides the file.
enum class Foreground { no, stderr_too };

// Appends to `path`, and makes the file anew where somebody removes it; two files of a few MiB at most, since it may
// lie in memory. What floods it is counted (flood_gate.hpp). Lines of level critical go to the file alone: the program
// tells them itself. Throws Failure.
Log open_log(const std::string& path, Foreground foreground = Foreground::no);
// For tests.
Log silent_log();

}  // namespace ckpt::agent
