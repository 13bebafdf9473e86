// Checks of invariants, made in every build. An invariant is something that only a bug of this project can break, and
// that would corrupt data, lose it, or let memory grow without bound. Input from others is not an invariant: code
// validates it and reports its own errors.
#pragma once

#include "base/error.hpp"

namespace ckpt {

[[noreturn]] void invariant_broken(const char* sentence);

// Throws Failure (CKPT_ERR_INTERNAL) if `holds` is false. `sentence` says what is wrong. Never aborts. A check that
// holds costs one branch and no allocation, so it is cheap enough for snapshot().
inline void check(bool holds, const char* sentence) {
  if (!holds) [[unlikely]]
    invariant_broken(sentence);
}

}  // namespace ckpt
