// check() throws Failure if an invariant does not hold. All builds have it. An invariant is what only a bug of this
// project can break, and what would then corrupt data, lose it, or let memory grow without bound. Do not use it for
// input from others: validate that, and report an error.
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
