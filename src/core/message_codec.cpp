#include "core/message_codec.hpp"

#include <bit>
#include <cstring>

#include "base/text.hpp"
#include "core/parity_pieces.hpp"

namespace ckpt::core {
namespace {

static_assert(std::endian::native == std::endian::little, "integers are copied as they lie in memory");

constexpr std::uint8_t format = 14;
constexpr std::size_t text_bytes_max = 64u << 10;

class BinaryWriter {
 public:
  BinaryWriter() { bytes_.reserve(1024); }

  std::vector<std::byte> take() { return std::move(bytes_); }

  template <std::integral T>
  void put(T value) {
    const auto* begin = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), begin, begin + sizeof(T));
  }

  template <class T>
  void field(const char*, const T& value) {
    if constexpr (std::integral<T>) {
      put(value);
    } else if constexpr (std::is_enum_v<T>) {
      put(static_cast<std::underlying_type_t<T>>(value));
    } else {
      visit_fields(*this, value);
    }
  }
  void field(const char*, const CheckpointId& checkpoint) { put(checkpoint.word()); }
  void field(const char*, const std::string& text) {
    const std::size_t length = std::min(text.size(), text_bytes_max);
    put(static_cast<std::uint32_t>(length));
    const auto* begin = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), begin, begin + length);
  }
  template <class T>
  void field(const char* name, const std::vector<T>& list) {
    put(static_cast<std::uint32_t>(list.size()));
    for (const T& item : list) field(name, item);
  }
  template <class T>
  void field(const char* name, const std::optional<T>& value) {
    put(static_cast<std::uint8_t>(value.has_value()));
    if (value) field(name, *value);
  }
  void shard(const char* name, const std::string& shard) { field(name, shard); }
  void shard_or_none(const char* name, const std::string& shard) { field(name, shard); }
  void shards(const char* name, const std::vector<std::string>& list) { field(name, list); }

 private:
  std::vector<std::byte> bytes_;
};

// After the first error, everything reads as zero and whole() is false.
class BinaryReader {
 public:
  explicit BinaryReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool whole() const { return good_ && bytes_.empty(); }

  template <std::integral T>
  T get() {
    T value{};
    const std::byte* from = take(sizeof(T));
    if (from != nullptr) std::memcpy(&value, from, sizeof(T));
    return value;
  }

  template <class T>
  void field(const char*, T& value) {
    if constexpr (std::integral<T>) {
      value = get<T>();
    } else {
      visit_fields(*this, value);
    }
  }
  void field(const char*, bool& value) {
    const auto byte = get<std::uint8_t>();
    good_ = good_ && byte <= 1;
    value = byte == 1;
  }
  void field(const char*, Verdict& verdict) {
    const auto byte = get<std::uint8_t>();
    good_ = good_ && byte <= static_cast<std::uint8_t>(Verdict::mismatch);
    if (good_) verdict = static_cast<Verdict>(byte);
  }
  void field(const char*, Standing& standing) { read_enum(standing, Standing::unprotected); }
  void field(const char*, Cause& cause) { read_enum(cause, last_cause); }
  void field(const char*, RankTrouble& trouble) { read_enum(trouble, last_trouble); }
  void field(const char*, Freeze& freeze) { read_enum(freeze, last_freeze); }
  void field(const char*, CaptureMode& mode) { read_enum(mode, last_capture_mode); }
  void field(const char*, Halt& halt) {
    visit_fields(*this, halt);
    good_ = good_ && halt.culprits.size() <= culprits_max && halt.others.size() <= unfrozen_max;
  }
  void field(const char*, FetchTrouble& trouble) { read_enum(trouble, FetchTrouble::corrupt); }
  void field(const char*, CheckpointId& checkpoint) { checkpoint = CheckpointId::from_word(get<std::uint64_t>()); }
  void field(const char*, std::string& text) {
    const std::size_t length = get<std::uint32_t>();
    good_ = good_ && length <= text_bytes_max;
    const std::byte* from = take(length);
    if (from != nullptr) text.assign(reinterpret_cast<const char*>(from), length);
  }
  template <class T>
  void field(const char* name, std::vector<T>& list) {
    const std::size_t count = get<std::uint32_t>();
    for (std::size_t i = 0; good_ && i < count; ++i) field(name, list.emplace_back());
  }
  template <class T>
  void field(const char* name, std::optional<T>& value) {
    bool is_there = false;
    field(name, is_there);
    if (is_there) field(name, value.emplace());
  }
  void field(const char*, Share& share) {
    visit_fields(*this, share);
    good_ = good_ && is_valid(share);
  }
  void field(const char*, ReplicationGroup& group) {
    visit_fields(*this, group);
    const std::size_t members = group.members.size();
    good_ = good_ && (members == 0 ? group.rows == 0
                                   : members >= 2 && members <= replication_members_max && group.member < members &&
                                         group.rows <= placement::max_parity_rows && group.rows < members);
  }
  void field(const char*, ParityManifest& parity_manifest) {
    visit_fields(*this, parity_manifest);
    good_ = good_ && (parity_manifest == ParityManifest() || is_valid(parity_manifest));
  }
  void field(const char*, CodingInputs& coding_inputs) {
    visit_fields(*this, coding_inputs);
    good_ = good_ && is_valid(coding_inputs.parity_manifest);
  }
  void field(const char*, Suspicion& suspicion) {
    visit_fields(*this, suspicion);
    good_ = good_ && suspicion.culprits.size() <= culprits_max;
  }
  void field(const char*, Cut& cut) {
    visit_fields(*this, cut);
    good_ = good_ && cut.of >= 1 && cut.of <= parts_max;
  }
  void shard(const char* name, std::string& shard) {
    field(name, shard);
    good_ = good_ && is_plain_name(shard);
  }
  void shard_or_none(const char* name, std::string& shard) {
    field(name, shard);
    good_ = good_ && (shard.empty() || is_plain_name(shard));
  }
  void shards(const char* name, std::vector<std::string>& list) {
    field(name, list);
    for (const std::string& name_of_shard : list) good_ = good_ && is_plain_name(name_of_shard);
  }

 private:
  template <class Enum>
  void read_enum(Enum& value, Enum last) {
    const auto byte = get<std::uint8_t>();
    good_ = good_ && byte <= static_cast<std::uint8_t>(last);
    if (good_) value = static_cast<Enum>(byte);
  }
  const std::byte* take(std::size_t count) {
    good_ = good_ && count <= bytes_.size();
    if (!good_) return nullptr;
    const std::byte* from = bytes_.data();
    bytes_ = bytes_.subspan(count);
    return from;
  }

  std::span<const std::byte> bytes_;
  bool good_ = true;
};

template <std::size_t kind = 0>
std::optional<WireMessage> decode_kind(std::size_t wanted, BinaryReader& reader) {
  if constexpr (kind == std::variant_size_v<WireMessage>) {
    return std::nullopt;
  } else {
    if (wanted != kind) return decode_kind<kind + 1>(wanted, reader);
    std::variant_alternative_t<kind, WireMessage> message;
    visit_fields(reader, message);
    if (!reader.whole()) return std::nullopt;
    return WireMessage(std::move(message));
  }
}

}  // namespace

std::vector<std::byte> encode(const WireMessage& message) {
  BinaryWriter writer;
  writer.put(format);
  writer.put(static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& content) { visit_fields(writer, content); }, message);
  return writer.take();
}

std::optional<WireMessage> decode(std::span<const std::byte> bytes) {
  BinaryReader reader(bytes);
  if (reader.get<std::uint8_t>() != format) return std::nullopt;
  const std::size_t kind = reader.get<std::uint8_t>();
  return decode_kind(kind, reader);
}

}  // namespace ckpt::core
