// Names the parts into which a main shard is cut. Ranks with the same main shard then need not each store all of it. A
// node handles a part like any shard; only the name tells them apart. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::core {

// The parts of its main shard that a rank captures: `stored` of the `of` parts, from number `first` on. After the last
// part comes part 0. "1 of 1" is the whole shard.
struct Share {
  std::uint32_t first = 0;
  std::uint32_t of = 1;
  std::uint32_t stored = 1;
  bool operator==(const Share&) const = default;
};

// How many slots a grant in the control page can name. One of them is the private shard's.
inline constexpr std::uint32_t captures_max = 4;
inline constexpr std::uint32_t parts_stored_max = captures_max - 1;
inline constexpr std::uint32_t parts_max = 9999;

bool is_valid(const Share& share);

// Names of parity pieces begin with this (core/parity_pieces.hpp). No name of a shard or of a part does.
inline constexpr std::string_view parity_prefix = "parity.";
bool is_reserved(std::string_view shard);

// Names of private shards end with this. No name of a main shard does.
inline constexpr std::string_view private_suffix = ".private";

// "model" for the whole shard, "model.2of4" for a part.
std::string part_name(const std::string& shard, std::uint32_t index, std::uint32_t of);

struct ShardPart {
  std::string shard;
  std::uint32_t index = 0;
  std::uint32_t of = 1;
  bool operator==(const ShardPart&) const = default;
};
// The reverse of part_name(). Any other name is that of a shard that was not cut.
ShardPart parse_part(std::string_view name);
bool may_be_part(std::string_view name);  // quick check: false for most names that are no parts

// The names of all parts; and of the parts of a share, in order from `first` on.
std::vector<std::string> parts_of(const std::string& shard, std::uint32_t of);
std::vector<std::string> parts_of(const std::string& shard, const Share& share);

}  // namespace ckpt::core
