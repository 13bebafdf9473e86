// Whether anybody listens at an address: how a tool finds out about agents on other machines.
#pragma once

#include <cstdint>
#include <set>
#include <string>

namespace ckpt::cli {

// Those of `addresses` ("host:port") that take a connection within `timeout_ms`. What is no address is passed over. A
// process that is stopped answers, too: the kernel does it for it.
std::set<std::string> who_answers(const std::set<std::string>& addresses, std::int64_t timeout_ms);

}  // namespace ckpt::cli
