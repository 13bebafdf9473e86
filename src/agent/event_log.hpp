// EventLog keeps what people should know: the newest notices and a few counters. They appear in the log and in `ckptctl
// status`. Only the agent's core thread uses it.
#pragma once

#include <cstdint>
#include <ctime>
#include <deque>
#include <string>

#include "agent/log.hpp"

namespace ckpt::agent {

// Counted since this agent started.
struct Counters {
  std::uint64_t commits = 0;         // that this agent learned of
  std::uint64_t skips = 0;           // snapshots that ranks of this node skipped
  std::uint64_t fetches = 0;         // fetches ordered for this node
  std::uint64_t failed_fetches = 0;  // how many of these fetches failed
  std::uint64_t corrupt = 0;         // damaged pieces, found here or received
  std::uint64_t refused = 0;         // how often a trainer was told that it must not go on
};

// One notice, or several similar ones.
struct NoticeEntry {
  std::time_t first = 0;  // when it came first
  std::time_t last = 0;   // when it came last
  std::uint64_t times = 0;
  std::string text;
};

class EventLog {
 public:
  explicit EventLog(Log log) : log_(std::move(log)) {}

  Counters counters;

  // Adds a notice and writes it to the log. If the same notice came within the last minute, only counts it. If
  // FloodGate::alike_max similar notices came within the last minute, adds no further entry: the newest similar entry
  // takes the new text and counts the notice.
  void note(const std::string& text) {
    const std::time_t now = std::time(nullptr);
    NoticeEntry* known = nullptr;
    std::uint64_t alike = 0;
    for (NoticeEntry& entry : entries_) {
      if (now - entry.last >= repeat_s || !are_alike(entry.text, text)) continue;
      if (entry.text == text) return count(entry, text, now);
      known = &entry;
      ++alike;
    }
    log_->warn("{}", text);  // the log counts repeated lines itself
    if (alike >= FloodGate::alike_max) return count(*known, text, now);
    entries_.push_back({now, now, 1, text});
    if (entries_.size() > entries_max) entries_.pop_front();
  }
  const std::deque<NoticeEntry>& notices() const { return entries_; }

 private:
  static void count(NoticeEntry& entry, const std::string& text, std::time_t now) {
    entry.text = text;
    entry.last = now;
    ++entry.times;
  }

  static constexpr std::size_t entries_max = 32;
  static constexpr std::time_t repeat_s = 60;  // how long a notice is compared with new ones
  const Log log_;
  std::deque<NoticeEntry> entries_;
};

}  // namespace ckpt::agent
