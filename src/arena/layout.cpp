#include "arena/layout.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/dtype.hpp"
#include "base/error.hpp"

namespace ckpt::arena {
namespace {

constexpr std::uint64_t size_max_bytes = std::uint64_t{1} << 53;
constexpr std::size_t name_max_bytes = 4096;
constexpr std::size_t extents_max = 16;

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    if (text.size() > 1) text += ',';
    text += std::to_string(extent);
  }
  text += ']';
  return text;
}

std::string type_text(const LayoutEntry& entry) {
  return std::string(info(entry.dtype).name) + " " + shape_text(entry.shape);
}

[[noreturn]] void refuse(const std::string& reason) {
  throw Failure(CKPT_ERR_CORRUPT, "a stored layout is damaged, so its piece cannot be used: " + reason);
}

// Accepts only integers, because a number with a decimal point may not fit into any integer.
template <class T>
T integer(const nlohmann::json& json) {
  if (!json.is_number_integer()) refuse("an extent or offset is not an integer");
  return json.get<T>();
}

LayoutEntry parse_entry(const std::string& name, const nlohmann::json& json) {
  LayoutEntry entry;
  entry.name = name;
  if (!is_tensor_name(name)) refuse("a tensor's name is not valid");
  const auto dtype = dtype_named(json.at("dtype").get<std::string>());
  if (!dtype) refuse("tensor " + quoted(name) + " has an unknown dtype");
  entry.dtype = *dtype;
  for (const auto& extent : json.at("shape")) entry.shape.push_back(integer<std::int64_t>(extent));
  const auto size_bytes = tensor_bytes(entry.dtype, entry.shape);
  const auto& offsets = json.at("data_offsets");
  entry.offset_bytes = integer<std::uint64_t>(offsets.at(0));
  if (entry.shape.size() > extents_max || !size_bytes || offsets.size() != 2 || entry.offset_bytes > size_max_bytes ||
      entry.offset_bytes + *size_bytes != integer<std::uint64_t>(offsets.at(1)))
    refuse("shape and offsets of tensor " + quoted(name) + " do not fit each other");
  entry.size_bytes = *size_bytes;
  return entry;
}

using ByName = std::map<std::string_view, const LayoutEntry*>;
ByName by_name(const Layout& layout) {
  ByName map;
  for (const LayoutEntry& entry : layout.entries) map.emplace(entry.name, &entry);
  return map;
}

}  // namespace

std::optional<std::uint64_t> tensor_bytes(ckpt_dtype dtype, const std::vector<std::int64_t>& shape) {
  std::uint64_t bytes = info(dtype).size_bytes;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes)) return std::nullopt;
  }
  return bytes <= size_max_bytes ? std::optional(bytes) : std::nullopt;
}

bool is_tensor_name(std::string_view name) {
  if (name.empty() || name.size() > name_max_bytes || name == "__metadata__") return false;
  try {
    return !nlohmann::json(name).dump().empty();
  } catch (const nlohmann::json::exception&) {  // not UTF-8
    return false;
  }
}

Layout pack(std::vector<LayoutEntry> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const LayoutEntry& a, const LayoutEntry& b) {
    const auto size_a = info(a.dtype).size_bytes, size_b = info(b.dtype).size_bytes;
    return size_a != size_b ? size_a > size_b : a.name < b.name;
  });
  Layout layout;
  for (LayoutEntry& entry : tensors) {
    entry.offset_bytes = layout.length_bytes;
    entry.size_bytes = tensor_bytes(entry.dtype, entry.shape).value();
    layout.length_bytes += entry.size_bytes;
  }
  layout.entries = std::move(tensors);
  return layout;
}

std::string layout_text(const Layout& layout) {
  std::string text = "{";
  for (const LayoutEntry& entry : layout.entries) {
    if (text.size() > 1) text += ",";
    text += quoted(entry.name) + ":{\"dtype\":\"" + info(entry.dtype).name + "\",\"shape\":" + shape_text(entry.shape) +
            ",\"data_offsets\":[" + std::to_string(entry.offset_bytes) + "," +
            std::to_string(entry.offset_bytes + entry.size_bytes) + "]}";
  }
  return text + "}";
}

Layout parse_layout(std::string_view text) {
  const auto json = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!json.is_object()) refuse("it is not a JSON object");
  Layout layout;
  try {
    for (const auto& [name, value] : json.items()) {
      layout.entries.push_back(parse_entry(name, value));
      if (layout.entries.back().offset_bytes != layout.length_bytes)
        refuse("tensor " + quoted(name) + " does not begin where the tensor before it ends");
      layout.length_bytes += layout.entries.back().size_bytes;
    }
  } catch (const nlohmann::json::exception& error) {
    refuse(error.what());
  }
  // The text must have this exact form, because it becomes part of safetensors headers unchanged.
  if (layout_text(layout) != text) refuse("its text is not exactly what ckptengine writes for these tensors");
  return layout;
}

std::uint64_t layout_hash(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

std::optional<std::string> first_difference(const Layout& stored, const Layout& registered) {
  const ByName old_entries = by_name(stored), new_entries = by_name(registered);
  for (const auto& [name, old_entry] : old_entries) {
    const auto found = new_entries.find(name);
    if (found == new_entries.end())
      return "tensor " + quoted(old_entry->name) + " is stored as " + type_text(*old_entry) + ", but not registered";
    if (type_text(*old_entry) != type_text(*found->second))
      return "tensor " + quoted(old_entry->name) + " is stored as " + type_text(*old_entry) + ", but registered as " +
             type_text(*found->second);
  }
  for (const auto& [name, new_entry] : new_entries)
    if (!old_entries.contains(name))
      return "tensor " + quoted(new_entry->name) + " is registered as " + type_text(*new_entry) + ", but not stored";
  return std::nullopt;
}

}  // namespace ckpt::arena
