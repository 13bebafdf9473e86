// Finds out which addresses accept a connection. `ckptctl gc` uses this to find agents on other machines.
#pragma once

#include <cstdint>
#include <set>
#include <string>

namespace ckpt::cli {

// Returns those of the `addresses` ("host:port") that accept a connection within `timeout_ms`. Ignores malformed ones.
// The address of a stopped process also accepts, because the kernel does that for the process.
std::set<std::string> who_answers(const std::set<std::string>& addresses, std::int64_t timeout_ms);

}  // namespace ckpt::cli
