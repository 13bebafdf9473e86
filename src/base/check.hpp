// check() throws Failure if an invariant does not hold. It is active in every build. Use it where only a bug of this
// project can break the invariant, and where going on would corrupt data, lose data, or let memory grow without bound.
// Do not use it for input from users, peers or files: validate that input, and report an error.
#pragma once

#include "base/error.hpp"

namespace ckpt {

// Throws the Failure of a broken invariant. check() calls it.
[[noreturn]] void invariant_broken(const char* sentence);

// Throws Failure (CKPT_ERR_INTERNAL) if `holds` is false. `sentence` says what is wrong then. Never aborts the process.
// If `holds` is true, the call costs one branch and no allocation, so it is cheap enough for snapshot().
inline void check(bool holds, const char* sentence) {
  if (!holds) [[unlikely]]
    invariant_broken(sentence);
}

}  // namespace ckpt
