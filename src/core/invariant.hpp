// Checks for bugs of the core that would lose data, made in every build. The driver survives the exception: the agent
// logs an internal error, the simulator reports a violation.
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
