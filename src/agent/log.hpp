// Log is the agent's log file. Each part of the agent that writes to it is given a reference; there is no global log.
// Thread-safe. A writer never waits for a slow terminal: a line that standard error cannot take at once is only in the
// file. A writer does wait for the file, which by default lies in memory.
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

// Opens the log. It appends to `path`, and makes the file again if somebody removes it. It keeps at most two files of a
// few MiB, since they may lie in memory. Of many similar lines it writes the first few and counts the rest (FloodGate).
// Lines of level critical go only to the file, because the program itself prints them. Throws Failure if the file
// cannot be opened.
Log open_log(const std::string& path, Foreground foreground = Foreground::no);
// Returns a log that discards all lines, for tests.
Log silent_log();

// Returns whether two sentences differ only in numbers, paths, quoted text, and at most two other words (fewer if they
// have less than ten words).
bool are_alike(const std::string& a, const std::string& b);

// FloodGate keeps a log readable: of many similar lines, it lets the first few through and counts the rest. It only
// decides, and the caller writes. Not thread-safe.
class FloodGate {
 public:
  static constexpr std::uint64_t alike_max = 8;  // how many similar but different lines are written per window
  // Length of the first window. After a window in which lines were counted, the next one is twice as long.
  static constexpr std::int64_t window_s = 60;
  static constexpr std::int64_t window_max_s = 3600;
  static constexpr std::size_t kinds_max = 64;  // kinds of lines that it remembers; it forgets the oldest

  // Returns the lines to write when `line` comes at time `now_s`: the line itself or nothing, and the counts of windows
  // that have ended. `exact`: only identical lines count as similar.
  std::vector<std::string> pass(const std::string& line, std::int64_t now_s, bool exact = false);
  // Returns the counts that pass() has not returned yet. Call this before the log ends.
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
