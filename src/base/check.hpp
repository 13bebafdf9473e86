// check() throws Failure if an invariant does not hold. All builds have it. Only a bug of this project can break an
// invariant. The bug would corrupt data, lose data, or let memory grow without bound. Do not use check() for input from
// others: validate such input, and report an error.
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
