// Progress shows how far a long command of ckptctl has come. On a terminal it draws a bar, but not for items that take
// less than half a second. Elsewhere it prints a line when an item begins. Only one thread may use it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "base/clock.hpp"

namespace ckpt::cli {

class Progress {
 public:
  enum class Form { none, lines, bar };

  // `out` must stay open while this object lives.
  Progress(Form form, std::FILE* out) : form_(form), out_(out) {}
  Progress() : Progress(Form::none, nullptr) {}
  ~Progress() { end(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Ends the previous item and begins one, e.g. "reading checkpoint 7".
  void begin(const std::string& what, std::uint64_t total_bytes);
  void advance(std::uint64_t bytes);  // `bytes` more of the item are done
  // Ends the item and removes its bar.
  void end();

 private:
  const Form form_;
  std::FILE* const out_;
  std::string what_;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t done_bytes_ = 0;
  Clock::time_point begun_{};
  Clock::time_point shown_{};
  bool on_screen_ = false;
};

// Returns e.g. "reading checkpoint 7  [#######-------------]  35 %  1.2 GiB/s  4.0 s left"
std::string bar_text(const std::string& what, std::uint64_t done_bytes, std::uint64_t total_bytes, double elapsed_ms);

}  // namespace ckpt::cli
