#include "base/error.hpp"

#include <cerrno>
#include <system_error>

#include "base/check.hpp"

namespace ckpt {

void throw_errno(ckpt_status status, const std::string& what) {
  const int error = errno;
  throw Failure(status, what + ": " + std::generic_category().message(error));
}

void throw_errno(ckpt_status status, const std::string& what, const std::string& advice) {
  const int error = errno;
  throw Failure(status, what + ": " + std::generic_category().message(error) + "; " + advice);
}

void invariant_broken(const char* sentence) {
  throw Failure(CKPT_ERR_INTERNAL, std::string("a bug in ckptengine: ") + sentence + "; please report it");
}

}  // namespace ckpt
