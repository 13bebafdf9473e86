// HMAC-SHA256: what proves that somebody has a key without showing it.
//
// Pure functions; thread-safe. They throw Failure (CKPT_ERR_SYSTEM) where the cryptographic library fails.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>

namespace ckpt::net {

using Mac = std::array<std::byte, 32>;

// Of the parts one after the other. Callers see to it that no two lists of parts run together to the same bytes.
Mac mac_of(std::span<const std::byte> key, std::initializer_list<std::span<const std::byte>> parts);

// In a time that does not depend on the bytes.
bool equal(const Mac& one, const Mac& other);

}  // namespace ckpt::net
