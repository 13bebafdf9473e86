// RecordSize computes how many bytes a record of the coordination store has, for the simulator. Agents write records as
// JSON. Names need no escapes, so none are counted. No I/O.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/fields.hpp"

namespace ckpt::sim {

class RecordSize {
 public:
  template <class Record>
  static std::uint64_t of(const Record& record) {
    RecordSize size;
    core::visit_fields(size, record);
    return size.bytes_;
  }

  // visit_fields() calls the functions below.
  template <class T>
  void field(const char* name, const T& value) {
    bytes_ += std::string_view(name).size() + 4;  // two quotes, colon and comma
    add(value);
  }
  void shard(const char* name, const std::string& shard) { field(name, shard); }

 private:
  template <class T>
  void add(const T& value) {
    if constexpr (std::integral<T>) {
      bytes_ += std::to_string(value).size();
    } else if constexpr (std::is_enum_v<T>) {
      bytes_ += 12;
    } else {
      bytes_ += 2;
      core::visit_fields(*this, value);
    }
  }
  void add(const std::string& text) { bytes_ += text.size() + 2; }
  void add(const CheckpointId& checkpoint) {
    field("incarnation", checkpoint.incarnation());
    field("iteration", checkpoint.iteration());
  }
  void add(const std::optional<placement::Strategy>&) { bytes_ += 16; }
  void add(const placement::Protection&) { bytes_ += 32; }
  template <class T>
  void add(const std::vector<T>& list) {
    for (const T& item : list) add(item);
    bytes_ += list.size() + 2;
  }

  std::uint64_t bytes_ = 2;
};

}  // namespace ckpt::sim
