#include "base/error.hpp"

#include <cerrno>
#include <system_error>

namespace ckpt {

void throw_errno(ckpt_status status, const std::string& what) {
  const int error = errno;
  throw Failure(status, what + ": " + std::generic_category().message(error));
}

void throw_errno(ckpt_status status, const std::string& what, const std::string& advice) {
  const int error = errno;
  throw Failure(status, what + ": " + std::generic_category().message(error) + "; " + advice);
}

}  // namespace ckpt
