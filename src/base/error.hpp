// Failure is the one exception type of the project. Set-up and slow paths throw it. The message says what happened,
// why, and what to do. Each thread, socket handler and function of the C interface catches it, so it never ends a
// thread.
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

// Throws Failure with the text of errno appended: "cannot map /dev/shm/x: Cannot allocate memory".
[[noreturn]] void throw_errno(ckpt_status status, const std::string& what);
// Appends the advice, too: "cannot map /dev/shm/x: Cannot allocate memory; enlarge /dev/shm".
[[noreturn]] void throw_errno(ckpt_status status, const std::string& what, const std::string& advice);

}  // namespace ckpt
