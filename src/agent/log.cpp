#include "agent/log.hpp"

#include <spdlog/sinks/null_sink.h>
#include <spdlog/sinks/rotating_file_sink.h>

#include "base/error.hpp"

namespace ckpt::agent {

Log open_log(const std::string& path) {
  constexpr std::size_t file_bytes_max = 4u << 20, old_files = 1;
  try {
    auto log = std::make_shared<spdlog::logger>(
        "ckptd", std::make_shared<spdlog::sinks::rotating_file_sink_mt>(path, file_bytes_max, old_files));
    log->flush_on(spdlog::level::info);
    return log;
  } catch (const spdlog::spdlog_ex& error) {
    throw Failure(CKPT_ERR_SYSTEM, "cannot write the log " + path + ": " + error.what() + "; set the option log_file");
  }
}

Log silent_log() { return std::make_shared<spdlog::logger>("ckptd", std::make_shared<spdlog::sinks::null_sink_mt>()); }

}  // namespace ckpt::agent
