// What happened here, for people: the last notices and a few counters, in the log and in `ckptctl status`. Belongs to
// the core thread.
#pragma once

#include <cstdint>
#include <ctime>
#include <deque>
#include <string>

#include "agent/log.hpp"

namespace ckpt::agent {

struct Counters {
  std::uint64_t commits = 0;
  std::uint64_t skips = 0;
  std::uint64_t fetches = 0;
  std::uint64_t failed_fetches = 0;
  std::uint64_t corrupt = 0;
  std::uint64_t refused = 0;
};

struct NoticeEntry {
  std::time_t first = 0;
  std::time_t last = 0;
  std::uint64_t times = 0;
  std::string text;
};

class Chronicle {
 public:
  explicit Chronicle(Log log) : log_(std::move(log)) {}

  Counters counters;

  // The same again is counted, not repeated.
  void note(const std::string& text) {
    const std::time_t now = std::time(nullptr);
    for (NoticeEntry& entry : entries_)
      if (entry.text == text && now - entry.last < repeat_s) {
        entry.last = now;
        ++entry.times;
        return;
      }
    log_->warn("{}", text);
    entries_.push_back({now, now, 1, text});
    if (entries_.size() > entries_max) entries_.pop_front();
  }
  const std::deque<NoticeEntry>& notices() const { return entries_; }

 private:
  static constexpr std::size_t entries_max = 32;
  static constexpr std::time_t repeat_s = 60;
  const Log log_;
  std::deque<NoticeEntry> entries_;
};

}  // namespace ckpt::agent
