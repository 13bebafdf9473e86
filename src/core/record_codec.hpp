// Encodes and decodes the records of the coordination store. They are JSON, so that people can read them.
//
// Pure functions; thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/messages.hpp"

namespace ckpt::core {

std::string to_text(const LeaderRecord& record);
std::string to_text(const IncarnationRecord& record);
std::string to_text(const AssignmentsRecord& record);

// Return nothing unless the text is a valid record: no field may be missing, of another type or out of range.
std::optional<LeaderRecord> leader_record(std::string_view text);
std::optional<IncarnationRecord> incarnation_record(std::string_view text);
std::optional<AssignmentsRecord> assignments_record(std::string_view text);

inline constexpr std::string_view assignments_prefix = "rank_assignments/";
// Returns the key of one of the records that hold the rank assignments `name`. `number` counts these records from 0.
std::string assignments_key(const AssignmentsName& name, std::size_t number);
// Returns the incarnation whose rank assignments the key holds, or nothing for any other key.
std::optional<std::uint64_t> incarnation_of_assignments(std::string_view key);

}  // namespace ckpt::core
