// Invariants of this project's own code, checked in every build. They are for what would corrupt data, lose it, or let
// memory grow without bound if it were ever broken. What others send, write or pass is no invariant: it is validated,
// and has errors of its own.
#pragma once

#include "base/error.hpp"

namespace ckpt {

[[noreturn]] void invariant_broken(const char* sentence);

// Throws Failure (CKPT_ERR_INTERNAL) with the sentence, which says what is not as it must be. Never aborts. While the
// invariant holds it costs a branch and allocates nothing, so it may stand on the way of a snapshot.
inline void check(bool holds, const char* sentence) {
  if (!holds) [[unlikely]]
    invariant_broken(sentence);
}

}  // namespace ckpt
