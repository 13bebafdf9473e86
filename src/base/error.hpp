// The one exception type of the project. It is thrown in set-up and slow paths and caught at the edge of a thread, a
// socket handler or the C ABI; it never leaves a background thread. The message is one sentence: what, where, what to
// do next.
#pragma once

#include <stdexcept>
#include <string>

#include "ckptengine/ckptengine.h"

namespace ckpt {

class Failure : public std::runtime_error {
 public:
  Failure(ckpt_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  ckpt_status status() const { return status_; }

 private:
  ckpt_status status_;
};

// Failure with the text of errno appended: "cannot map /dev/shm/x: Cannot allocate memory".
[[noreturn]] void throw_errno(ckpt_status status, const std::string& what);
// With what to do behind it: "cannot map /dev/shm/x: Cannot allocate memory; enlarge /dev/shm".
[[noreturn]] void throw_errno(ckpt_status status, const std::string& what, const std::string& advice);

}  // namespace ckpt
