#include "arena/gradient_record.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "arena/slot.hpp"
#include "base/error.hpp"
#include "kernels/digest.hpp"

namespace ckpt::arena {
namespace {

constexpr std::uint64_t magic = 0x3247525444504b43;  // "CKPDTRG2"
constexpr std::uint64_t alignment = 64;
constexpr std::uint64_t entries_max = std::uint64_t{1} << 24;
constexpr std::uint64_t text_bytes_max = 256;
constexpr std::uint64_t least_room_bytes = 64u << 10;  // for a description, and for what is not updated

[[noreturn]] void corrupt(const char* what) {
  throw Failure(CKPT_ERR_CORRUPT, std::string("a gradient record cannot be used: ") + what);
}

template <class T, class Object>
concept is_a = std::is_same_v<std::remove_const_t<T>, Object>;

// Calls `field` for each number of the object, in the order of the encoding.
void visit(is_a<kernels::Arithmetic> auto& of, auto field) {
  field(of.vectors), field(of.rest), field(of.vectors_forget_nan), field(of.rest_forgets_nan);
  field(of.vector_elements);
}
void visit(is_a<kernels::AdamStep> auto& step, auto field) {
  visit(step.arithmetic, field);
  field(step.shrink), field(step.weight_decay), field(step.beta1), field(step.lerp), field(step.beta2);
  field(step.square), field(step.root_divisor), field(step.epsilon), field(step.negative_rate);
  field(step.shrinks), field(step.decays), field(step.lerp_from_gradient), field(step.amsgrad), field(step.maximize);
}
void visit(is_a<kernels::SgdStep> auto& step, auto field) {
  visit(step.arithmetic, field);
  field(step.weight_decay), field(step.momentum), field(step.undamped), field(step.negative_rate);
  field(step.decays), field(step.has_momentum), field(step.first), field(step.nesterov), field(step.maximize);
}
void visit(is_a<GradientRecord::CountedStep> auto& step, auto field) {
  auto& settings = step.settings;
  field(settings.learning_rate), field(settings.beta1), field(settings.beta2), field(settings.epsilon);
  field(settings.weight_decay), field(settings.decoupled_weight_decay), field(settings.amsgrad);
  field(settings.maximize);
}
void visit(is_a<GradientRecord::Updated> auto& of, auto field) {
  field(of.elements), field(of.gradient_at), field(of.parameter_at), field(of.first_moment_at);
  field(of.second_moment_at), field(of.largest_second_moment_at), field(of.count_at), field(of.step);
  field(of.is_bfloat16);
}
void visit(is_a<GradientRecord::Copied> auto& of, auto field) {
  field(of.piece_at), field(of.record_at), field(of.size_bytes);
}

// Every number takes 8 bytes.
template <class T>
std::uint64_t word_of(T value) {
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(value));
  return word;
}

class Writer {
 public:
  void word(std::uint64_t value) { words_.push_back(value); }
  template <class Entry>
  void entries(const std::vector<Entry>& list) {
    word(list.size());
    for (const Entry& entry : list) write(entry);
  }
  void text(const std::string& text) {
    word(text.size());
    const std::size_t at = words_.size();
    words_.resize(at + (text.size() + 7) / 8, 0);
    if (!text.empty()) std::memcpy(words_.data() + at, text.data(), text.size());
  }
  const std::vector<std::uint64_t>& words() const { return words_; }

 private:
  void write(const auto& entry) {
    visit(entry, [this](auto value) { word(word_of(value)); });
  }
  void write(const GradientRecord::Step& step) {
    word(step.index());
    std::visit([this](const auto& kind) { write(kind); }, step);
  }

  std::vector<std::uint64_t> words_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::uint64_t word() {
    if (bytes_.size() - at_ < 8) corrupt("its description is cut off");
    std::uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + at_, 8);
    at_ += 8;
    return value;
  }
  template <class Entry>
  std::vector<Entry> entries() {
    const std::uint64_t count = word();
    if (count > entries_max || count * 8 > bytes_.size() - at_) corrupt("it has too many entries");
    std::vector<Entry> list(count);
    for (Entry& entry : list) read_entry(entry);
    return list;
  }
  std::string text() {
    const std::uint64_t size = word();
    if (size > text_bytes_max) corrupt("a text in it is too long");
    std::string text;
    for (std::uint64_t at = 0; at < size; at += 8) {
      const std::uint64_t part = word();
      text.append(reinterpret_cast<const char*>(&part), std::min<std::uint64_t>(8, size - at));
    }
    return text;
  }

 private:
  void read_entry(auto& entry) {
    visit(entry, [this](auto& value) { this->read(value); });
  }
  void read_entry(GradientRecord::Step& step) {
    switch (word()) {
      case 0:
        return read_entry(step.emplace<0>());
      case 1:
        return read_entry(step.emplace<1>());
      case 2:
        return read_entry(step.emplace<2>());
      default:
        corrupt("it names an unknown optimizer");
    }
  }
  template <class T>
  void read(T& value) {
    const std::uint64_t stored = word();
    const std::uint64_t limit = sizeof(T) == 8 ? UINT64_MAX : (std::uint64_t{1} << 8 * sizeof(T)) - 1;
    if (stored > (std::is_same_v<T, bool> ? 1 : limit)) corrupt("a number in it is too large");
    std::memcpy(&value, &stored, sizeof(value));
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

std::uint64_t rounded_up(std::uint64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

Writer written(const GradientRecord& record, std::uint64_t size_bytes) {
  Writer writer;
  writer.word(magic);
  writer.word(size_bytes);
  writer.word(record.base.word());
  writer.word(record.checkpoint.word());
  writer.word(record.piece_bytes);
  writer.word(record.layout_hash);
  writer.text(record.torch_version);
  writer.entries(record.steps);
  writer.entries(record.updated);
  writer.entries(record.copied);
  return writer;
}

struct Range {
  std::uint64_t at;
  std::uint64_t size_bytes;
};

void check_within(const Range& range, std::uint64_t whole_bytes) {
  if (range.at > whole_bytes || range.size_bytes > whole_bytes - range.at) corrupt("a place in it is out of bounds");
}

void check_rounding(const kernels::Arithmetic& arithmetic) {
  constexpr auto last = kernels::Rounding::gpu_fused;
  if (arithmetic.vectors > last || arithmetic.rest > last || arithmetic.vector_elements == 0 ||
      arithmetic.vector_elements > 64)
    corrupt("it names an unknown way to round");
}

bool is_decay(float beta) { return beta >= 0 && beta < 1 && !std::signbit(beta); }

void check_steps(const GradientRecord& record) {
  for (const GradientRecord::Step& step : record.steps) {
    if (const auto* adam = std::get_if<kernels::AdamStep>(&step)) {
      check_rounding(adam->arithmetic);
      if (!is_decay(adam->beta1) || !is_decay(adam->beta2)) corrupt("a step in it is none of an Adam");
    }
    if (const auto* sgd = std::get_if<kernels::SgdStep>(&step)) check_rounding(sgd->arithmetic);
  }
}

// Returns the ranges of the piece that the record writes.
std::vector<Range> written_ranges(const GradientRecord& record, std::uint64_t record_bytes) {
  std::vector<Range> ranges;
  for (const GradientRecord::Updated& each : record.updated) {
    if (each.step >= record.steps.size()) corrupt("a tensor in it has no step");
    if (each.elements > record.piece_bytes / sizeof(float)) corrupt("a tensor in it is larger than the piece");
    check_within({each.gradient_at, each.elements * (each.is_bfloat16 ? 2 : 4)}, record_bytes);
    if (each.gradient_at % sizeof(float) != 0) corrupt("a gradient in it is not aligned");
    check_within({each.count_at, sizeof(float)}, record.piece_bytes);
    for (const std::uint64_t at : each.written(record.steps[each.step])) {
      if (at % sizeof(float) != 0) corrupt("a tensor in it is not aligned");
      ranges.push_back({at, each.elements * sizeof(float)});
    }
  }
  for (const GradientRecord::Copied& each : record.copied) {
    check_within({each.record_at, each.size_bytes}, record_bytes);
    ranges.push_back({each.piece_at, each.size_bytes});
  }
  return ranges;
}

void check_covers(std::vector<Range> ranges, std::uint64_t piece_bytes) {
  for (const Range& range : ranges) check_within(range, piece_bytes);
  std::erase_if(ranges, [](const Range& range) { return range.size_bytes == 0; });
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.at < b.at; });
  std::uint64_t end = 0;
  for (const Range& range : ranges) {
    if (range.at != end) corrupt("it does not write each byte of the piece once");
    end += range.size_bytes;
  }
  if (end != piece_bytes) corrupt("it does not write the whole piece");
}

struct Moments {
  bool has_first, has_second, has_largest;
};
Moments moments_of(const kernels::AdamStep& step) { return {true, true, step.amsgrad}; }
Moments moments_of(const kernels::SgdStep& step) { return {step.has_momentum, false, false}; }
Moments moments_of(const GradientRecord::CountedStep& step) { return {true, true, step.settings.amsgrad}; }

}  // namespace

std::vector<std::uint64_t> GradientRecord::Updated::written(const Step& by) const {
  const Moments moments = std::visit([](const auto& kind) { return moments_of(kind); }, by);
  std::vector<std::uint64_t> places{parameter_at};
  if (moments.has_first) places.push_back(first_moment_at);
  if (moments.has_second) places.push_back(second_moment_at);
  if (moments.has_largest) places.push_back(largest_second_moment_at);
  return places;
}

std::uint64_t description_bytes(const GradientRecord& record) {
  return rounded_up(written(record, 0).words().size() * sizeof(std::uint64_t));
}

std::vector<std::byte> encode(const GradientRecord& record) {
  const std::uint64_t size_bytes = description_bytes(record);
  const Writer writer = written(record, size_bytes);
  std::vector<std::byte> bytes(size_bytes);
  std::memcpy(bytes.data(), writer.words().data(), writer.words().size() * sizeof(std::uint64_t));
  return bytes;
}

GradientRecord decode_record(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  if (reader.word() != magic) corrupt("it does not begin like one");
  if (const std::uint64_t size = reader.word(); size > bytes.size()) corrupt("its description is cut off");
  GradientRecord record;
  record.base = CheckpointId::from_word(reader.word());
  record.checkpoint = CheckpointId::from_word(reader.word());
  record.piece_bytes = reader.word();
  record.layout_hash = reader.word();
  record.torch_version = reader.text();
  record.steps = reader.entries<GradientRecord::Step>();
  record.updated = reader.entries<GradientRecord::Updated>();
  record.copied = reader.entries<GradientRecord::Copied>();
  check_steps(record);
  check_covers(written_ranges(record, bytes.size()), record.piece_bytes);
  return record;
}

std::uint64_t record_bytes_max(std::uint64_t piece_bytes) { return piece_bytes / 2 + least_room_bytes; }

std::uint64_t bytes_with_record(std::uint64_t piece_bytes) {
  const std::uint64_t most = record_bytes_max(piece_bytes);
  return rounded_up(piece_bytes) + rounded_up(kernels::leaf_count(most) * sizeof(std::uint64_t)) + rounded_up(most);
}

// ---- in a slot: behind the piece come the digests of the record's leaves, then the record ----

namespace {

struct Place {
  std::uint64_t digests_at;
  std::uint64_t record_at;
  std::uint64_t end;
};

std::optional<Place> place_of(std::uint64_t piece_bytes, std::uint64_t record_bytes, std::uint64_t capacity_bytes) {
  if (piece_bytes > capacity_bytes || record_bytes > capacity_bytes) return std::nullopt;
  const std::uint64_t digests_at = rounded_up(piece_bytes);
  const std::uint64_t record_at = digests_at + rounded_up(kernels::leaf_count(record_bytes) * sizeof(std::uint64_t));
  const Place place{digests_at, record_at, record_at + record_bytes};
  return place.end <= capacity_bytes ? std::optional(place) : std::nullopt;
}

std::uint64_t record_seal_of(CheckpointId checkpoint, std::uint64_t piece_bytes, const SlotRecord& record) {
  return seal_of({.checkpoint = checkpoint.word(),
                  .length_bytes = record.data.size(),
                  .root_digest = kernels::root_digest(record.digests, record.data.size()),
                  .layout_bytes = piece_bytes});
}

}  // namespace

std::optional<SlotRecord> Slot::record() const {
  const auto piece = sealed_fields();
  const std::uint64_t seal = header_->record_seal.load(std::memory_order_acquire);
  if (!piece || seal == 0) return std::nullopt;
  const std::uint64_t length_bytes = __atomic_load_n(&header_->record_bytes, __ATOMIC_RELAXED);
  const auto place = place_of(piece->length_bytes, length_bytes, bounds_.data_capacity_bytes);
  if (!place) return std::nullopt;
  const SlotRecord record{
      {data_ + place->record_at, length_bytes},
      {reinterpret_cast<const std::uint64_t*>(data_ + place->digests_at), kernels::leaf_count(length_bytes)}};
  const bool is_of_piece =
      seal == record_seal_of(CheckpointId::from_word(piece->checkpoint), piece->length_bytes, record);
  return is_of_piece ? std::optional(record) : std::nullopt;
}

std::optional<RecordPlace> WritableSlot::record_place(std::uint64_t piece_bytes, std::uint64_t record_bytes) {
  const auto place = place_of(piece_bytes, record_bytes, bounds_.data_capacity_bytes);
  if (!place) return std::nullopt;
  return RecordPlace{data_ + place->record_at, reinterpret_cast<std::uint64_t*>(data_ + place->digests_at)};
}

void WritableSlot::seal_record(CheckpointId checkpoint, std::uint64_t piece_bytes, std::uint64_t record_bytes) {
  const auto place = record_place(piece_bytes, record_bytes);
  if (!place) return;
  __atomic_store_n(&header_->record_bytes, record_bytes, __ATOMIC_RELAXED);
  const SlotRecord record{{place->data, record_bytes}, {place->digests, kernels::leaf_count(record_bytes)}};
  header_->record_seal.store(record_seal_of(checkpoint, piece_bytes, record), std::memory_order_release);
}

}  // namespace ckpt::arena
