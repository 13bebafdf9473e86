// invariant() stops the core when a bug would lose data. All builds have it. The agent logs the exception as an
// internal error and goes on. The simulator reports a violation.
#pragma once

#include <stdexcept>

namespace ckpt::core {

class BrokenInvariant : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// `broken` is a sentence that says what is wrong.
inline void invariant(bool holds, const char* broken) {
  if (!holds) throw BrokenInvariant(broken);
}

}  // namespace ckpt::core
