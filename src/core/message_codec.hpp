// Encodes and decodes the messages between agents. A message is one byte for the format, one byte for the kind of
// message, and then the fields in the order of fields.hpp. Integers are little endian. Texts and lists begin with their
// length in 32 bits. The bytes to decode may come from an attacker: decoding does not recurse, and allocates no more
// memory than a message of their length can need.
//
// Pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "core/fields.hpp"

namespace ckpt::core {

using WireMessage = std::variant<Report, Directive, VerifyRequest, ReportBatch, DirectiveBatch, ReplicationUpdate>;

std::vector<std::byte> encode(const WireMessage& message);

// Returns nothing unless `bytes` is exactly one encoded message.
std::optional<WireMessage> decode(std::span<const std::byte> bytes);

}  // namespace ckpt::core
