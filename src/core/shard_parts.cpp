#include "core/shard_parts.hpp"

#include <charconv>
#include <optional>

namespace ckpt::core {

namespace {

std::optional<std::uint32_t> number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && !text.empty() && (text == "0" || text.front() != '0') ? std::optional(value) : std::nullopt;
}

}  // namespace

bool is_valid(const Share& share) {
  return share.of >= 1 && share.of <= parts_max && share.first < share.of && share.stored >= 1 &&
         share.stored <= share.of && share.stored <= parts_stored_max;
}

bool is_reserved(std::string_view shard) {
  return shard.starts_with(parity_prefix) || shard == parity_prefix.substr(0, parity_prefix.size() - 1);
}

std::string part_name(const std::string& shard, std::uint32_t index, std::uint32_t of) {
  return of == 1 ? shard : shard + "." + std::to_string(index) + "of" + std::to_string(of);
}

ShardPart parse_part(std::string_view name) {
  ShardPart whole{std::string(name), 0, 1};
  const auto dot = name.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return whole;
  const std::string_view suffix = name.substr(dot + 1);
  const auto middle = suffix.find("of");
  if (middle == std::string_view::npos) return whole;
  const auto index = number(suffix.substr(0, middle));
  const auto of = number(suffix.substr(middle + 2));
  if (!index || !of || *of < 2 || *of > parts_max || *index >= *of) return whole;
  return {std::string(name.substr(0, dot)), *index, *of};
}

bool may_be_part(std::string_view name) {
  return !name.empty() && name.back() >= '0' && name.back() <= '9' && name.find("of") != std::string_view::npos;
}

std::vector<std::string> parts_of(const std::string& shard, std::uint32_t of) {
  return parts_of(shard, Share{0, of, of});
}

std::vector<std::string> parts_of(const std::string& shard, const Share& share) {
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < share.stored; ++i) {
    names.push_back(part_name(shard, (share.first + i) % share.of, share.of));
  }
  return names;
}

}  // namespace ckpt::core
