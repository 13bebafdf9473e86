// Tests which addresses accept a connection. ckptctl uses it to find agents on other machines.
#pragma once

#include <cstdint>
#include <set>
#include <string>

namespace ckpt::cli {

// Returns the `addresses` ("host:port") that accept a connection within `timeout_ms`. Ignores what is not an address. A
// stopped process also answers, because the kernel accepts for it.
std::set<std::string> who_answers(const std::set<std::string>& addresses, std::int64_t timeout_ms);

}  // namespace ckpt::cli
