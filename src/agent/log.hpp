// Log is the agent's log file. Whoever writes to it gets a reference; there is no global log. Thread-safe. A writer
// never waits for a slow disk or terminal.
#pragma once

#include <spdlog/logger.h>

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

namespace ckpt::agent {

using Log = std::shared_ptr<spdlog::logger>;

// Whether lines also go to standard error.
enum class Foreground { no, stderr_too };

// Appends to `path`, and makes the file again if somebody removes it. Keeps at most two files of a few MiB, since they
// may lie in memory. Floods of similar lines are counted (FloodGate). Lines of level critical go only to the file,
// because the program prints them itself. Throws Failure.
Log open_log(const std::string& path, Foreground foreground = Foreground::no);
// For tests.
Log silent_log();

// Returns whether two sentences differ only in a name or two, in numbers, paths or quoted text.
bool are_alike(const std::string& a, const std::string& b);

// FloodGate keeps a log readable: of many similar lines, it lets the first few through and counts the rest. It only
// decides, and the caller writes. Not thread-safe.
class FloodGate {
 public:
  static constexpr std::uint64_t alike_max = 8;  // similar but different lines written per window
  // The first window. After a window that overflowed, the next one is twice as long.
  static constexpr std::int64_t window_s = 60;
  static constexpr std::int64_t window_max_s = 3600;
  static constexpr std::size_t kinds_max = 64;  // kinds of lines; the oldest are forgotten

  // Returns what to write at `now_s` for `line`: the line or nothing, and the counts of windows that have ended.
  // `exact`: only identical lines count as similar.
  std::vector<std::string> pass(const std::string& line, std::int64_t now_s, bool exact = false);
  // Returns the counts that are not written yet.
  std::vector<std::string> rest();

 private:
  struct Kind {
    std::vector<std::string> written;  // the first line names the kind
    std::string last;                  // the last line that was counted
    std::uint64_t counted = 0;
    std::int64_t since_s = 0;
    std::int64_t window_s = FloodGate::window_s;
  };
  void end_windows(std::int64_t now_s, std::vector<std::string>& lines);

  std::list<Kind> kinds_;
};

}  // namespace ckpt::agent
