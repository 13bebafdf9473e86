// The hash function FNV-1a. It is for hashes that must be the same on all nodes, because std::hash may differ between
// compilers. Begin with hash_begin, and pass the result of each call on to the next.
#pragma once

#include <cstdint>
#include <string_view>

namespace ckpt::core {

inline constexpr std::uint64_t hash_begin = 0xcbf29ce484222325u;

inline std::uint64_t hash_byte(std::uint64_t hash, unsigned char byte) { return (hash ^ byte) * 0x100000001b3u; }

inline std::uint64_t hash_of(std::uint64_t hash, std::string_view text) {
  for (const char c : text) hash = hash_byte(hash, static_cast<unsigned char>(c));
  return hash_byte(hash, '\n');
}

inline std::uint64_t hash_of(std::uint64_t hash, std::uint64_t number) {
  for (int shift = 0; shift < 64; shift += 8) hash = hash_byte(hash, static_cast<unsigned char>(number >> shift));
  return hash;
}

}  // namespace ckpt::core
