// Messages between agents as bytes: one byte format, one byte kind, then the fields in the order of fields.hpp,
// integers little endian, texts and lists behind their 32-bit length. No recursion and no allocation beyond what the
// bytes hold, so that garbage costs nothing.
//
// Pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "agent/fields.hpp"

namespace ckpt::agent {

using WireMessage = std::variant<protocol::Report, protocol::Directive, VerifyRequest, protocol::ReportBatch,
                                 protocol::DirectiveBatch, ReplicationUpdate>;

std::vector<std::byte> encode(const WireMessage& message);

// Nothing for anything but the whole encoding of one message.
std::optional<WireMessage> decode(std::span<const std::byte> bytes);

}  // namespace ckpt::agent
