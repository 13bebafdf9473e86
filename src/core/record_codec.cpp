#include "core/record_codec.hpp"

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/text.hpp"
#include "core/fields.hpp"

namespace ckpt::core {
namespace {

using nlohmann::json;

constexpr const char* verdict_names[] = {"undecided", "fresh", "restore", "lost", "mismatch"};

class JsonWriter {
 public:
  json body = json::object();

  template <class T>
  void field(const char* name, const T& value) {
    body[name] = to_json(value);
  }
  void shard(const char* name, const std::string& shard) { field(name, shard); }

 private:
  template <class T>
  static json to_json(const T& value) {
    if constexpr (std::integral<T> || std::same_as<T, std::string>) {
      return value;
    } else {
      JsonWriter inner;
      visit_fields(inner, value);
      return inner.body;
    }
  }
  static json to_json(const Verdict& verdict) { return verdict_names[static_cast<std::size_t>(verdict)]; }
  static json to_json(const std::optional<placement::Strategy>& strategy) {
    return strategy ? json(placement::name(*strategy)) : json();
  }
  static json to_json(const placement::Protection& protection) { return placement::name(protection); }
  static json to_json(const CheckpointId& checkpoint) {
    return {{"incarnation", checkpoint.incarnation()}, {"iteration", checkpoint.iteration()}};
  }
  template <class T>
  static json to_json(const std::vector<T>& list) {
    json array = json::array();
    for (const T& item : list) array.push_back(to_json(item));
    return array;
  }
};

// Throws json::exception or OutOfRange for a missing or invalid field.
struct OutOfRange {};

class JsonReader {
 public:
  explicit JsonReader(const json& body) : body_(body) {}

  template <class T>
  void field(const char* name, T& value) {
    from_json(body_.at(name), value);
  }
  void shard(const char* name, std::string& shard) {
    field(name, shard);
    if (!is_plain_name(shard)) throw OutOfRange();
  }

 private:
  template <class T>
  static void from_json(const json& from, T& value) {
    if constexpr (std::same_as<T, bool> || std::same_as<T, std::string>) {
      value = from.get<T>();
    } else if constexpr (std::unsigned_integral<T>) {
      if (!from.is_number_unsigned() || from.get<std::uint64_t>() > std::numeric_limits<T>::max()) throw OutOfRange();
      value = from.get<T>();
    } else {
      JsonReader inner(from);
      visit_fields(inner, value);
    }
  }
  static void from_json(const json& from, Verdict& verdict) {
    for (std::size_t i = 0; i < std::size(verdict_names); ++i)
      if (from.get<std::string>() == verdict_names[i]) return void(verdict = static_cast<Verdict>(i));
    throw OutOfRange();
  }
  static void from_json(const json& from, std::optional<placement::Strategy>& strategy) {
    if (!from.is_null()) strategy = placement::strategy_named(from.get<std::string>());
  }
  static void from_json(const json& from, placement::Protection& protection) {
    protection = placement::protection_named(from.get<std::string>());
  }
  static void from_json(const json& from, Cut& cut) {
    JsonReader inner(from);
    visit_fields(inner, cut);
    if (cut.of < 1 || cut.of > parts_max) throw OutOfRange();
  }
  static void from_json(const json& from, RankAssignment& assignment) {
    JsonReader inner(from);
    visit_fields(inner, assignment);
    if (assignment.restored_parts < 1 || assignment.restored_parts > parts_max) throw OutOfRange();
  }
  static void from_json(const json& from, CheckpointId& checkpoint) {
    std::uint64_t incarnation = 0, iteration = 0;
    from_json(from.at("incarnation"), incarnation);
    from_json(from.at("iteration"), iteration);
    if (incarnation > CheckpointId::incarnation_max || iteration > std::uint64_t{CheckpointId::iteration_max})
      throw OutOfRange();
    checkpoint = CheckpointId(incarnation, static_cast<std::int64_t>(iteration));
  }
  template <class T>
  static void from_json(const json& from, std::vector<T>& list) {
    if (!from.is_array()) throw OutOfRange();
    for (const json& item : from) from_json(item, list.emplace_back());
  }

  const json& body_;
};

template <class Record>
std::string write(const Record& record) {
  JsonWriter writer;
  visit_fields(writer, record);
  return writer.body.dump(-1, ' ', false, json::error_handler_t::replace);
}

template <class Record>
std::optional<Record> read(std::string_view text) {
  try {
    const json body = json::parse(text);
    Record record;
    JsonReader reader(body);
    visit_fields(reader, record);
    return record;
  } catch (const json::exception&) {
    return std::nullopt;
  } catch (const OutOfRange&) {
    return std::nullopt;
  } catch (const std::invalid_argument&) {  // an unknown strategy or protection
    return std::nullopt;
  }
}

// Leaders rely on this: every rank of an incarnation that began has its rank assignment.
bool is_consistent(const IncarnationRecord& record) {
  const bool began = record.decision.verdict == Verdict::fresh || record.decision.verdict == Verdict::restore;
  return !began ||
         (record.assignments.incarnation == record.incarnation && record.assignments.count == record.world_size);
}

}  // namespace

std::string to_text(const LeaderRecord& record) { return write(record); }
std::string to_text(const IncarnationRecord& record) { return write(record); }
std::string to_text(const AssignmentsRecord& record) { return write(record); }
std::optional<LeaderRecord> leader_record(std::string_view text) { return read<LeaderRecord>(text); }
std::optional<IncarnationRecord> incarnation_record(std::string_view text) {
  auto record = read<IncarnationRecord>(text);
  if (record && !is_consistent(*record)) return std::nullopt;
  return record;
}
std::optional<AssignmentsRecord> assignments_record(std::string_view text) { return read<AssignmentsRecord>(text); }

std::string assignments_key(const AssignmentsName& name, std::size_t number) {
  return std::string(assignments_prefix) + std::to_string(name.incarnation) + "." + std::to_string(name.digest) + "." +
         std::to_string(number);
}

std::optional<std::uint64_t> incarnation_of_assignments(std::string_view key) {
  if (!key.starts_with(assignments_prefix)) return std::nullopt;
  key.remove_prefix(assignments_prefix.size());
  std::uint64_t incarnation = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), incarnation);
  if (error != std::errc() || end == key.data() + key.size() || *end != '.') return std::nullopt;
  return incarnation;
}

}  // namespace ckpt::core
