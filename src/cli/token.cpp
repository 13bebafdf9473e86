#include <fcntl.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/unique_fd.hpp"
#include "cli/commands.hpp"
#include "coord/node_registry.hpp"

namespace ckpt::cli {

Result make_token(const std::string& path) {
  const std::string text = coord::fresh_token() + "\n";
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) throw_errno(CKPT_ERR_SYSTEM, "cannot make the file " + path);
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) || ::fsync(file.get()) != 0) {
    ::unlink(path.c_str());
    throw_errno(CKPT_ERR_SYSTEM, "cannot write the file " + path);
  }
  return {
      "wrote a fresh token to " + path + "; copy it to all nodes, and name the file there with the option token_file\n",
      {{"token_file", path}}};
}

}  // namespace ckpt::cli
