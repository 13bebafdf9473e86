// HMAC-SHA256, for the handshake. An HMAC proves that its sender has a key, and does not reveal the key.
//
// Pure functions; thread-safe. They throw Failure (CKPT_ERR_SYSTEM) if the cryptographic library fails.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>

namespace ckpt::net {

using Mac = std::array<std::byte, 32>;

// The HMAC of the parts, joined in order. Two different lists of parts can join to the same bytes: the caller must
// exclude that, for example with parts of fixed size.
Mac mac_of(std::span<const std::byte> key, std::initializer_list<std::span<const std::byte>> parts);

// True if the two are equal. Takes the same time whatever the bytes are.
bool equal(const Mac& one, const Mac& other);

}  // namespace ckpt::net
