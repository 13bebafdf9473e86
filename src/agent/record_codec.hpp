// Codec of the coordination store's records "leader", "incarnation" and "rank_assignments/...". They are JSON, so that
// people can read them.
//
// Pure functions; thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "protocol/messages.hpp"

namespace ckpt::agent {

std::string to_text(const protocol::LeaderRecord& record);
std::string to_text(const protocol::IncarnationRecord& record);
std::string to_text(const protocol::AssignmentsRecord& record);

// Return nothing unless the text is a valid record: no field may be missing, of another type or out of range.
std::optional<protocol::LeaderRecord> leader_record(std::string_view text);
std::optional<protocol::IncarnationRecord> incarnation_record(std::string_view text);
std::optional<protocol::AssignmentsRecord> assignments_record(std::string_view text);

inline constexpr std::string_view assignments_prefix = "rank_assignments/";
std::string assignments_key(const protocol::AssignmentsName& name, std::size_t number);
// Returns the incarnation whose rank assignments the key holds, or nothing for any other key.
std::optional<std::uint64_t> incarnation_of_assignments(std::string_view key);

}  // namespace ckpt::agent
