// Names the parts into which a main shard is cut. Of several ranks with the same main shard, each then needs to store
// only some parts. A node handles a part like a whole shard. Only the name says that it is a part. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::core {

// The parts of its main shard that a rank captures. After the last part comes part 0 again. The default is the whole
// shard.
struct Share {
  std::uint32_t first = 0;   // number of the first part that the rank captures
  std::uint32_t of = 1;      // into how many parts the shard is cut
  std::uint32_t stored = 1;  // how many parts the rank captures
  bool operator==(const Share&) const = default;
};

// How many slots a grant in the control page can name. One of them is for the private shard.
inline constexpr std::uint32_t captures_max = 4;
inline constexpr std::uint32_t parts_stored_max = captures_max - 1;
inline constexpr std::uint32_t parts_max = 9999;

bool is_valid(const Share& share);

// Names of parity pieces begin with this (core/parity_pieces.hpp). Names of shards and parts do not.
inline constexpr std::string_view parity_prefix = "parity.";
bool is_reserved(std::string_view shard);  // true if a shard must not have this name

// Names of private shards end with this. Names of main shards do not.
inline constexpr std::string_view private_suffix = ".private";

// "model" for the whole shard, "model.2of4" for a part.
std::string part_name(const std::string& shard, std::uint32_t index, std::uint32_t of);

struct ShardPart {
  std::string shard;
  std::uint32_t index = 0;
  std::uint32_t of = 1;
  bool operator==(const ShardPart&) const = default;
};
// The reverse of part_name(). A name that is not a part's counts as that of a whole shard.
ShardPart parse_part(std::string_view name);
bool may_be_part(std::string_view name);  // quick check: true for all names of parts, false for most other names

// The names of all parts of a shard, or of the parts of a share, in order from Share::first on.
std::vector<std::string> parts_of(const std::string& shard, std::uint32_t of);
std::vector<std::string> parts_of(const std::string& shard, const Share& share);

}  // namespace ckpt::core
