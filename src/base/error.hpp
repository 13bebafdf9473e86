// Failure is the exception that the project throws to report an error. Only set-up and slow paths throw it. Its message
// says what happened, why, and what to do. Every thread, socket handler and function of the C interface catches
// Failure. So a Failure never ends a thread and never crosses the C interface.
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

// Throws a Failure whose message is `what` and the text of errno: "cannot map /dev/shm/x: Cannot allocate memory".
[[noreturn]] void throw_errno(ckpt_status status, const std::string& what);
// Does the same, and appends `advice` to the message: "cannot map /dev/shm/x: Cannot allocate memory; enlarge
// /dev/shm".
[[noreturn]] void throw_errno(ckpt_status status, const std::string& what, const std::string& advice);

}  // namespace ckpt
