#include "agent/flood_gate.hpp"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <utility>

namespace ckpt::agent {
namespace {

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(std::move(word));
  return words;
}

// A number, a path, an address, something quoted.
bool is_particular(const std::string& word) {
  return std::any_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isdigit(c) != 0 || c == '/' || c == '"' || c == '\'' || c >= 0x80;
  });
}

std::string summary_of(const std::string& last, std::uint64_t count) {
  return count == 1 ? last : std::to_string(count) + " lines like this were left out, this is the last: " + last;
}

}  // namespace

bool are_alike(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const auto words = words_of(a), others = words_of(b);
  if (words.size() != others.size()) return false;
  constexpr std::size_t words_per_name = 5, names_max = 2;
  std::size_t names = 0;
  for (std::size_t i = 0; i < words.size(); ++i)
    if (words[i] != others[i] && !(is_particular(words[i]) && is_particular(others[i]))) ++names;
  return names <= std::min(names_max, words.size() / words_per_name);
}

void FloodGate::end_windows(std::int64_t now_s, std::vector<std::string>& lines) {
  for (auto kind = kinds_.begin(); kind != kinds_.end();) {
    if (now_s - kind->since_s < kind->window_s) {
      ++kind;
    } else if (kind->counted == 0) {
      kind = kinds_.erase(kind);
    } else {
      lines.push_back(summary_of(kind->last, kind->counted));
      kind->counted = 0;
      kind->since_s = now_s;
      kind->window_s = std::min(2 * kind->window_s, window_max_s);
      kind->written.resize(1);
      ++kind;
    }
  }
}

std::vector<std::string> FloodGate::pass(const std::string& line, std::int64_t now_s, bool exact) {
  std::vector<std::string> lines;
  end_windows(now_s, lines);
  const auto kind = std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& each) {
    return exact ? each.written.front() == line : are_alike(each.written.front(), line);
  });
  if (kind == kinds_.end()) {
    kinds_.push_back({{line}, {}, 0, now_s});
    if (kinds_.size() > kinds_max) {
      if (kinds_.front().counted != 0) lines.push_back(summary_of(kinds_.front().last, kinds_.front().counted));
      kinds_.pop_front();
    }
    lines.push_back(line);
  } else if (kind->written.size() < alike_max && kind->window_s == window_s &&
             std::find(kind->written.begin(), kind->written.end(), line) == kind->written.end()) {
    kind->written.push_back(line);
    lines.push_back(line);
  } else {
    kind->last = line;
    ++kind->counted;
  }
  return lines;
}

std::vector<std::string> FloodGate::rest() {
  std::vector<std::string> lines;
  for (Kind& kind : kinds_)
    if (kind.counted != 0) lines.push_back(summary_of(kind.last, std::exchange(kind.counted, 0)));
  return lines;
}

}  // namespace ckpt::agent
