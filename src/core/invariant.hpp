// Checks, also in release, of what can only be false through a defect of the core itself, and would lose data.
// Whoever drives the core survives the exception: the agent notes an internal error, the simulator a violation.
#pragma once

#include <stdexcept>

namespace ckpt::core {

class BrokenInvariant : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// `broken` is a sentence for people.
inline void invariant(bool holds, const char* broken) {
  if (!holds) throw BrokenInvariant(broken);
}

}  // namespace ckpt::core
