// The store's records "root" and "life" as JSON, so that people can read them.
//
// Pure functions; thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "protocol/messages.hpp"

namespace ckpt::agent {

std::string to_text(const protocol::RootRecord& record);
std::string to_text(const protocol::LifeRecord& record);

// Nothing for anything but the text of a record: fields missing, of another type or out of range.
std::optional<protocol::RootRecord> root_record(std::string_view text);
std::optional<protocol::LifeRecord> life_record(std::string_view text);

}  // namespace ckpt::agent
