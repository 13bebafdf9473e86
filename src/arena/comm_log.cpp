#include "arena/comm_log.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

namespace ckpt::arena {
namespace {

constexpr unsigned lap_shift = 56, channel_shift = 53, kind_shift = 50;
constexpr std::uint64_t time_mask = (std::uint64_t{1} << kind_shift) - 1;

std::uint8_t lap_of(std::uint64_t index) { return static_cast<std::uint8_t>(index / comm_events_max + 1); }

std::uint64_t microseconds(Clock::time_point time) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
  return static_cast<std::uint64_t>(us) & time_mask;
}

CommEvent event_of(std::uint64_t word) {
  return {static_cast<std::int64_t>(word & time_mask), static_cast<CommKind>(word >> kind_shift & 0x7),
          static_cast<std::uint8_t>(word >> channel_shift & 0x7)};
}

bool is_valid(const CommEvent& event) {
  static_assert(comm_channels_max == 8);  // any three bits are a channel
  return event.kind >= CommKind::begin && event.kind <= CommKind::copy;
}

}  // namespace

namespace {
double seconds_of_event(const CommEvent& event, Clock::time_point now) {
  return std::min(1e-6 * static_cast<double>(event.at_us), seconds_of(now));
}
}  // namespace

std::optional<schedule::Mark> mark_of(const CommEvent& event, Clock::time_point now) {
  const double at_s = seconds_of_event(event, now);
  switch (event.kind) {
    case CommKind::begin:
      return schedule::Mark{schedule::Mark::Kind::begin, at_s};
    case CommKind::end:
      return schedule::Mark{schedule::Mark::Kind::end, at_s};
    case CommKind::iteration:
      return schedule::Mark{schedule::Mark::Kind::iteration, at_s};
    default:
      return std::nullopt;
  }
}

std::optional<schedule::DeviceMark> device_mark_of(const CommEvent& event, Clock::time_point now) {
  using Kind = schedule::DeviceMark::Kind;
  const double at_s = seconds_of_event(event, now);
  switch (event.kind) {
    case CommKind::bubble_begin:
      return schedule::DeviceMark{Kind::bubble_begin, at_s};
    case CommKind::bubble_end:
      return schedule::DeviceMark{Kind::bubble_end, at_s};
    case CommKind::update:
      return schedule::DeviceMark{Kind::update, at_s};
    case CommKind::iteration:
      return schedule::DeviceMark{Kind::iteration, at_s};
    default:
      return std::nullopt;
  }
}

// ---- Writer ----

void CommWriter::store(CommKind kind, std::uint32_t channel, Clock::time_point now) {
  const std::uint64_t index = words_->written.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t word = std::uint64_t{lap_of(index)} << lap_shift | std::uint64_t{channel} << channel_shift |
                             static_cast<std::uint64_t>(kind) << kind_shift | microseconds(now);
  words_->events[index % comm_events_max].store(word, std::memory_order_release);
}

void CommWriter::begin(std::uint32_t channel, Clock::time_point now) {
  words_->channels[channel].begun.fetch_add(1, std::memory_order_release);
  store(CommKind::begin, channel, now);
}

bool CommWriter::end(std::uint32_t channel, Clock::time_point now) {
  CommWords::Channel& words = words_->channels[channel];
  std::uint32_t ended = words.ended.load(std::memory_order_acquire);
  do {
    if (ended == words.begun.load(std::memory_order_acquire)) return false;
  } while (!words.ended.compare_exchange_weak(ended, ended + 1, std::memory_order_acq_rel, std::memory_order_acquire));
  store(CommKind::end, channel, now);
  return true;
}

void CommWriter::iteration(Clock::time_point now) { store(CommKind::iteration, 0, now); }

void CommWriter::pause(std::string_view name) {
  std::array<std::uint64_t, pause_name_words> words{};
  std::memcpy(words.data(), name.data(), std::min(name.size(), sizeof words));
  for (std::size_t i = 0; i < words.size(); ++i) words_->pauses.name[i].store(words[i], std::memory_order_relaxed);
  words_->pauses.begun.fetch_add(1, std::memory_order_release);
}

bool CommWriter::resume() {
  CommWords::Pauses& pauses = words_->pauses;
  const std::uint32_t ended = pauses.ended.load(std::memory_order_relaxed);
  if (ended == pauses.begun.load(std::memory_order_relaxed)) return false;
  pauses.ended.store(ended + 1, std::memory_order_release);
  return true;
}

// ---- Reader ----

CommReader::CommReader(const CommWords& words) : words_(&words), next_(words.written.load(std::memory_order_acquire)) {}

bool CommReader::read(std::vector<CommEvent>& to) {
  const std::uint64_t written = words_->written.load(std::memory_order_acquire);
  const auto lose = [&] {
    next_ = written;
    return false;
  };
  if (written - next_ > comm_events_max) return lose();  // also true if `written` went backwards
  for (; next_ != written; ++next_) {
    const std::uint64_t word = words_->events[next_ % comm_events_max].load(std::memory_order_acquire);
    const auto laps_ahead = static_cast<std::int8_t>(static_cast<std::uint8_t>(word >> lap_shift) - lap_of(next_));
    if (laps_ahead < 0) return true;  // not stored yet
    const CommEvent event = event_of(word);
    if (laps_ahead > 0 || !is_valid(event)) return lose();
    to.push_back(event);
  }
  return true;
}

namespace {
// Loads `ended` before `begun`. `ended` never exceeds `begun`, so equal values mean that the channel was idle between
// the two loads.
bool is_busy(const CommWords::Channel& channel) {
  const std::uint32_t ended = channel.ended.load(std::memory_order_acquire);
  return channel.begun.load(std::memory_order_acquire) != ended;
}
}  // namespace

bool CommReader::is_busy() const {
  const auto busy = [](const CommWords::Channel& channel) { return arena::is_busy(channel); };
  return std::any_of(std::begin(words_->channels), std::end(words_->channels), busy) ||
         std::any_of(std::begin(words_->on_gpu), std::end(words_->on_gpu), busy);
}

std::optional<std::string> CommReader::paused() const {
  const CommWords::Pauses& pauses = words_->pauses;
  const std::uint32_t ended = pauses.ended.load(std::memory_order_acquire);
  if (pauses.begun.load(std::memory_order_acquire) == ended) return std::nullopt;
  std::array<char, pause_name_words * sizeof(std::uint64_t)> text;
  for (std::size_t i = 0; i < pause_name_words; ++i) {
    const std::uint64_t word = pauses.name[i].load(std::memory_order_relaxed);
    std::memcpy(text.data() + i * sizeof word, &word, sizeof word);
  }
  std::string name(text.data(), ::strnlen(text.data(), text.size()));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return name;
}

std::uint64_t CommReader::begun_total() const {
  std::uint64_t total = 0;
  for (const CommWords::Channel& channel : words_->channels) total += channel.begun.load(std::memory_order_acquire);
  for (const CommWords::Channel& channel : words_->on_gpu) total += channel.begun.load(std::memory_order_acquire);
  return total;
}

}  // namespace ckpt::arena
