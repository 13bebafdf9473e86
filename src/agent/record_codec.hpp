// The store's records "root", "life" and "seats/..." as JSON, so that people can read them.
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
std::string to_text(const protocol::SeatsRecord& record);

// Nothing for anything but the text of a record: fields missing, of another type or out of range.
std::optional<protocol::RootRecord> root_record(std::string_view text);
std::optional<protocol::LifeRecord> life_record(std::string_view text);
std::optional<protocol::SeatsRecord> seats_record(std::string_view text);

inline constexpr std::string_view seats_prefix = "seats/";
std::string seats_key(const protocol::SeatsName& name, std::size_t number);
// Of which life the seats below that key are; nothing for any other key.
std::optional<std::uint64_t> life_of_seats(std::string_view key);

}  // namespace ckpt::agent
