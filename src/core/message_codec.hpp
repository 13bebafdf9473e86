// Encodes and decodes the messages between agents. A message is one byte of format, one byte of kind, then the fields
// in the order of fields.hpp. Integers are little endian. Texts and lists begin with their length in 32 bits. The bytes
// may come from anybody: decoding does not recurse, and allocates no more than the bytes can hold.
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
