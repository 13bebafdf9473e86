#include "agent/log.hpp"

#include <limits.h>
#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "agent/flood_gate.hpp"
#include "base/error.hpp"
#include "base/same_file.hpp"

namespace ckpt::agent {
namespace {

using spdlog::details::log_msg;
using RotatingFile = spdlog::sinks::rotating_file_sink_st;

class CalmSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  CalmSink(std::string path, Foreground foreground) : path_(std::move(path)), foreground_(foreground) { open(); }
  ~CalmSink() override {
    try {
      for (const std::string& line : gate_.rest()) put(line, spdlog::level::warn);
    } catch (const std::exception&) {
      // There is nobody to tell.
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

  // Nobody may read it, and the agent must not wait for that.
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
  // It was removed, or rotated.
  void reopen() {
    try {
      open();
    } catch (const spdlog::spdlog_ex&) {
      // The one that has no name any more is better than none.
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
    throw Failure(CKPT_ERR_SYSTEM, "cannot write the log " + path + ": " + error.what() + "; set the option log_file");
  }
}

Log silent_log() { return std::make_shared<spdlog::logger>("ckptd", std::make_shared<spdlog::sinks::null_sink_mt>()); }

}  // namespace ckpt::agent
