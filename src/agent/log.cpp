#include "agent/log.hpp"

#include <limits.h>
#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <mutex>
#include <sstream>
#include <utility>

#include "base/error.hpp"
#include "base/same_file.hpp"

namespace ckpt::agent {
namespace {

using spdlog::details::log_msg;
using RotatingFile = spdlog::sinks::rotating_file_sink_st;

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(std::move(word));
  return words;
}

// True for a number, a path, an address, or quoted text.
bool is_particular(const std::string& word) {
  return std::any_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isdigit(c) != 0 || c == '/' || c == '"' || c == '\'' || c >= 0x80;
  });
}

std::string summary_of(const std::string& last, std::uint64_t count) {
  return count == 1 ? last : std::to_string(count) + " lines like this were left out, this is the last: " + last;
}

class CalmSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  CalmSink(std::string path, Foreground foreground) : path_(std::move(path)), foreground_(foreground) { open(); }
  ~CalmSink() override {
    try {
      for (const std::string& line : gate_.rest()) put(line, spdlog::level::warn);
    } catch (const std::exception&) {
      // The log failed, so there is no place to report it.
    }
  }

 protected:
  void sink_it_(const log_msg& message) override {
    const std::string line(message.payload.data(), message.payload.size());
    const auto since = message.time.time_since_epoch();
    const auto now_s = std::chrono::duration_cast<std::chrono::seconds>(since).count();
    for (const std::string& each : gate_.pass(line, now_s, message.level < spdlog::level::warn))
      put(each, message.level);
  }
  void flush_() override { file_->flush(); }

 private:
  void put(const std::string& line, spdlog::level::level_enum level) {
    const log_msg message("ckptd", level, line);
    struct stat now {};
    if (::stat(path_.c_str(), &now) != 0 || !is_same_file(now, opened_)) reopen();
    file_->log(message);
    if (foreground_ == Foreground::stderr_too && level != spdlog::level::critical) show(message);
  }

  // Nobody may be reading it, and the agent must not wait for a reader.
  void show(const log_msg& message) {
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    pollfd entry{STDERR_FILENO, POLLOUT, 0};
    if (::poll(&entry, 1, 0) != 1 || (entry.revents & POLLOUT) == 0) return;
    [[maybe_unused]] const auto written =
        ::write(STDERR_FILENO, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
  }

  void open() {
    constexpr std::size_t file_bytes_max = 4u << 20, old_files = 1;
    file_ = std::make_unique<RotatingFile>(path_, file_bytes_max, old_files);
    if (::stat(path_.c_str(), &opened_) != 0) opened_ = {};
  }
  // The file was removed or rotated.
  void reopen() {
    try {
      open();
    } catch (const spdlog::spdlog_ex&) {
      // A file without a name is better than none.
    }
  }

  const std::string path_;
  const Foreground foreground_;
  std::unique_ptr<RotatingFile> file_;
  struct stat opened_ {};
  FloodGate gate_;
};

void make_directory_of(const std::string& path) {
  const auto directory = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (directory.empty() || std::filesystem::is_directory(directory, error)) return;
  std::filesystem::create_directories(directory, error);
  if (error)
    throw Failure(CKPT_ERR_SYSTEM, "cannot make the directory " + directory.string() + " for the log: " +
                                       error.message() + "; make it, or set the option log_file to another path");
}

}  // namespace

Log open_log(const std::string& path, Foreground foreground) {
  make_directory_of(path);
  try {
    auto log = std::make_shared<spdlog::logger>("ckptd", std::make_shared<CalmSink>(path, foreground));
    log->flush_on(spdlog::level::info);
    return log;
  } catch (const spdlog::spdlog_ex& error) {
    throw Failure(CKPT_ERR_SYSTEM,
                  "cannot write the log " + path + ": " + error.what() +
                      "; make room there, or set the option log_file to a path that this user can write");
  }
}

Log silent_log() { return std::make_shared<spdlog::logger>("ckptd", std::make_shared<spdlog::sinks::null_sink_mt>()); }

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
