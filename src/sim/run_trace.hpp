// RunTrace writes down what happens in a simulated run, line by line. It also computes a fingerprint of the run, which
// must be the same for two runs of one seed. Not thread-safe.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <sstream>
#include <string>

#include "core/events.hpp"

namespace ckpt::sim {

std::string describe(const core::Event& event);
std::string describe(const core::Effect& effect);
std::string describe(const core::Decision& decision);
std::string describe(const core::SlotRef& slot);
std::string describe(CheckpointId checkpoint);
std::string describe_epoch(std::uint64_t epoch);  // its term and its leader

// Joins texts and numbers, as in "a" + 1 + "b".
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

class RunTrace {
 public:
  // Writes lines to `out`. Null: keeps only the fingerprint.
  explicit RunTrace(std::ostream* out) : out_(out) {}

  bool on() const { return out_ != nullptr; }

  // Writes the line that `make` returns. Does not call `make` if no lines are written.
  template <class Make>
  void line(core::TimeMs now, const Make& make) {
    if (on()) write(now, make());
  }

  void mark(std::uint64_t fact);  // adds a fact to the fingerprint
  std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  void write(core::TimeMs now, const std::string& text);

  std::ostream* out_;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace ckpt::sim
