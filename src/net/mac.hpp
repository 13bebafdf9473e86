// HMAC-SHA256, for the handshake: it proves that somebody has a key and does not reveal the key.
//
// Pure functions; thread-safe. They throw Failure (CKPT_ERR_SYSTEM) if the cryptographic library fails.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>

namespace ckpt::net {

using Mac = std::array<std::byte, 32>;

// The HMAC of the parts in order. Callers make sure that no two lists of parts join to the same bytes.
Mac mac_of(std::span<const std::byte> key, std::initializer_list<std::span<const std::byte>> parts);

// Compares in a time that does not depend on the bytes.
bool equal(const Mac& one, const Mac& other);

}  // namespace ckpt::net
