#include "cli/progress.hpp"

#include <algorithm>
#include <array>

#include "cli/table.hpp"

namespace ckpt::cli {
namespace {

constexpr std::chrono::milliseconds wait_limit{500};  // shorter operations need no bar
constexpr std::chrono::milliseconds interval{100};

}  // namespace

std::string bar_text(const std::string& what, std::uint64_t done_bytes, std::uint64_t total_bytes, double elapsed_ms) {
  constexpr std::size_t width = 20;
  const double share =
      total_bytes == 0 ? 1 : std::min(1.0, static_cast<double>(done_bytes) / static_cast<double>(total_bytes));
  const auto filled = static_cast<std::size_t>(share * static_cast<double>(width));
  std::array<char, 16> percent{};
  std::snprintf(percent.data(), percent.size(), "%3.0f %%", 100 * share);
  std::string text =
      what + "  [" + std::string(filled, '#') + std::string(width - filled, '-') + "]  " + percent.data();
  if (elapsed_ms > 0 && share > 0) {
    const double bytes_per_s = static_cast<double>(done_bytes) / elapsed_ms * 1e3;
    text += "  " + human_bytes(static_cast<std::uint64_t>(bytes_per_s)) + "/s  " +
            human_ms(elapsed_ms / share * (1 - share)) + " left";
  }
  return text;
}

void Progress::begin(const std::string& what, std::uint64_t total_bytes) {
  end();
  what_ = what;
  total_bytes_ = total_bytes;
  done_bytes_ = 0;
  begun_ = Clock::now();
  shown_ = begun_ + wait_limit - interval;
  if (form_ == Form::lines) std::fprintf(out_, "%s, %s\n", what.c_str(), human_bytes(total_bytes).c_str());
}

void Progress::advance(std::uint64_t bytes) {
  done_bytes_ += bytes;
  const auto now = Clock::now();
  if (form_ != Form::bar || now < shown_ + interval) return;
  shown_ = now;
  on_screen_ = true;
  std::fprintf(out_, "\r\033[K%s",
               bar_text(what_, done_bytes_, total_bytes_, milliseconds_between(begun_, now)).c_str());
  std::fflush(out_);
}

void Progress::end() {
  if (!on_screen_) return;
  std::fputs("\r\033[K", out_);
  std::fflush(out_);
  on_screen_ = false;
}

}  // namespace ckpt::cli
