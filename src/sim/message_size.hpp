// MessageSize computes how many bytes a message has on the wire, for the simulator. It visits the same fields as the
// agents' encoding (message_codec.hpp). It also computes a fingerprint without sequence numbers and times. So two
// heartbeats that say the same have the same fingerprint. No I/O.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/fields.hpp"
#include "sim/random.hpp"

namespace ckpt::sim {

class MessageSize {
 public:
  explicit MessageSize(const core::Message& message) {
    std::visit([this](const auto& content) { core::visit_fields(*this, content); }, message);
  }
  explicit MessageSize(const core::Report& report) { core::visit_fields(*this, report); }
  explicit MessageSize(const core::Directive& directive) { core::visit_fields(*this, directive); }

  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t fingerprint() const { return fingerprint_; }

  // visit_fields() calls the functions below.
  template <class T>
  void field(const char* name, const T& value) {
    if constexpr (std::integral<T>) {
      const std::string_view view(name);
      bytes_ += sizeof(T);
      if (view != "sequence" && view != "directive" && !view.ends_with("_ms")) add(static_cast<std::uint64_t>(value));
    } else if constexpr (std::is_enum_v<T>) {
      bytes_ += sizeof(std::underlying_type_t<T>);
      add(static_cast<std::uint64_t>(value));
    } else {
      core::visit_fields(*this, value);
    }
  }
  void field(const char*, const CheckpointId& checkpoint) {
    bytes_ += sizeof checkpoint;
    add(checkpoint.word());
  }
  void field(const char*, const std::string& text) {
    bytes_ += 4 + text.size();
    add(std::hash<std::string>{}(text));
  }
  template <class T>
  void field(const char* name, const std::vector<T>& list) {
    bytes_ += 4;
    add(list.size());
    for (const T& item : list) field(name, item);
  }
  template <class T>
  void field(const char* name, const std::optional<T>& value) {
    bytes_ += 1;
    add(value.has_value());
    if (value) field(name, *value);
  }
  void shard(const char* name, const std::string& shard) { field(name, shard); }
  void shard_or_none(const char* name, const std::string& shard) { field(name, shard); }
  void shards(const char* name, const std::vector<std::string>& list) { field(name, list); }

 private:
  void add(std::uint64_t fact) { fingerprint_ = (fingerprint_ ^ fact) * 0x9e3779b97f4a7c15u + (fingerprint_ >> 29); }

  std::uint64_t bytes_ = 2;  // format and kind
  std::uint64_t fingerprint_ = 0;
};

}  // namespace ckpt::sim
