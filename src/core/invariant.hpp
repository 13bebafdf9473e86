// invariant() throws BrokenInvariant if a bug of the core would lose data. All builds check it. The agent logs the
// exception as an internal error and goes on with the next event. The simulator reports a violation.
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
