// A main shard cut into equal parts, so that ranks that hold the same one need not each store all of it. A part is a
// shard like any other to whoever stores it; only its name tells what it is part of. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::protocol {

// What a rank captures of the main shard that it names: `stored` of its `of` parts, from number `first` on, around the
// end. 1 of 1: all of it.
struct Share {
  std::uint32_t first = 0;
  std::uint32_t of = 1;
  std::uint32_t stored = 1;
  bool operator==(const Share&) const = default;
};

// The control page has room for so many slots in a grant; one of them is the private shard's.
inline constexpr std::uint32_t captures_max = 4;
inline constexpr std::uint32_t parts_stored_max = captures_max - 1;
inline constexpr std::uint32_t parts_max = 9999;

bool is_valid(const Share& share);

// The names of parity pieces begin so (protocol/parity_pieces.hpp); no shard's does, nor that of a part of one.
inline constexpr std::string_view parity_prefix = "parity.";
bool is_reserved(std::string_view shard);

// "model" where it is all of it, else "model.2of4".
std::string part_name(const std::string& shard, std::uint32_t index, std::uint32_t of);

struct ShardPart {
  std::string shard;
  std::uint32_t index = 0;
  std::uint32_t of = 1;
  bool operator==(const ShardPart&) const = default;
};
// The reverse; a name that is no part's is a shard that was not cut.
ShardPart parse_part(std::string_view name);
bool may_be_part(std::string_view name);  // quickly: false for most names that are none

// The names of all parts, and of the ones that make up a share, in the order of their numbers from `first` on.
std::vector<std::string> parts_of(const std::string& shard, std::uint32_t of);
std::vector<std::string> parts_of(const std::string& shard, const Share& share);

}  // namespace ckpt::protocol
