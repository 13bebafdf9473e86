// The hash function FNV-1a, for values that all nodes must compute alike. std::hash may differ between compilers.
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
