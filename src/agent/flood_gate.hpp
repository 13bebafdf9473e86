// Keeps a log readable: of lines that say the same of ever different things, the first few are written and the rest are
// counted. Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <vector>

namespace ckpt::agent {

// Whether two sentences tell of one cause: they differ in a name or two, in numbers, paths or what is quoted.
bool are_alike(const std::string& a, const std::string& b);

class FloodGate {
 public:
  static constexpr std::uint64_t alike_max = 8;  // lines that are alike and differ, written in a window
  static constexpr std::int64_t window_s = 60;   // the first one; each that overflows is twice as long as the last
  static constexpr std::int64_t window_max_s = 3600;
  static constexpr std::size_t kinds_max = 64;  // the oldest are forgotten

  // What to write now, at `now_s`, that `line` has come: it, or not, and what was counted in windows that have ended.
  // With `exact`, only the same line again is alike.
  std::vector<std::string> pass(const std::string& line, std::int64_t now_s, bool exact = false);
  // What was counted and not told yet.
  std::vector<std::string> rest();

 private:
  struct Kind {
    std::vector<std::string> written;  // the first one names the kind
    std::string last;                  // that was counted
    std::uint64_t counted = 0;
    std::int64_t since_s = 0;
    std::int64_t window_s = FloodGate::window_s;
  };
  void end_windows(std::int64_t now_s, std::vector<std::string>& lines);

  std::list<Kind> kinds_;
};

}  // namespace ckpt::agent
