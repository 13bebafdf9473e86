#include "base/error.hpp"

#include <cerrno>
#include <system_error>

#include "base/check.hpp"

namespace ckpt {

namespace {

const char* advice_for(int error) {
  switch (error) {
    case EACCES:
      return "; give this user access to it, or use another path";
    case ENOSPC:
      return "; make room in that file system";
    case EDQUOT:
      return "; this user's quota is used up: make room, or raise the quota";
    case EROFS:
      return "; use a path in a file system that is mounted writable";
    case EMFILE:
      return "; raise the limit of open files (ulimit -n)";
    case ENFILE:
      return "; raise the machine's limit of open files (sysctl fs.file-max)";
    case ENOMEM:
      return "; free memory on this machine, or raise the process's limit (ulimit -v, the container's memory limit)";
    default:
      return "";
  }
}

}  // namespace

void throw_errno(ckpt_status status, const std::string& what) {
  const int error = errno;
  throw Failure(status, what + ": " + std::generic_category().message(error) + advice_for(error));
}

void throw_errno(ckpt_status status, const std::string& what, const std::string& advice) {
  const int error = errno;
  throw Failure(status, what + ": " + std::generic_category().message(error) + "; " + advice);
}

std::string bug_text(const std::string& what) {
  constexpr const char* bug = "this is a bug in ckptengine; report it with the agent's log";
  return what.ends_with(bug) ? what : what + ": " + bug;
}

void invariant_broken(const char* sentence) { throw Failure(CKPT_ERR_INTERNAL, bug_text(sentence)); }

}  // namespace ckpt
