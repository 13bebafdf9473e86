#include "cli/gnuplot.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.hpp"
#include "base/unique_fd.hpp"

namespace ckpt::cli {
namespace {

constexpr int gnuplot_timeout_ms = 60'000;

// The exit status of `gnuplot SCRIPT`. People see its standard error.
int exit_status_of_gnuplot(const std::string& script_path) {
  std::string program = "gnuplot";
  std::string argument = script_path;
  std::array<char*, 3> arguments{program.data(), argument.data(), nullptr};
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, "gnuplot", nullptr, nullptr, arguments.data(), environ);
  if (error == ENOENT) {
    throw Failure(CKPT_ERR_SYSTEM, "a plot needs gnuplot, which is not installed: install the package gnuplot-nox");
  }
  if (error != 0) throw Failure(CKPT_ERR_SYSTEM, std::string("cannot start gnuplot: ") + std::strerror(error));
  const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  pollfd waited{process.get(), POLLIN, 0};
  const bool in_time = poll(&waited, 1, gnuplot_timeout_ms) == 1;
  if (!in_time) kill(pid, SIGKILL);
  int status = 0;
  waitpid(pid, &status, 0);
  if (!in_time)
    throw Failure(CKPT_ERR_TIMEOUT, "gnuplot did not end within 60 s and was killed; draw less, or leave out --plot");
  return status;
}

class TemporaryScript {
 public:
  explicit TemporaryScript(const std::string& text) {
    const UniqueFd file(mkstemp(path_.data()));
    if (file.get() < 0) throw_errno(CKPT_ERR_SYSTEM, "cannot create " + path_);
    if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      unlink(path_.c_str());
      throw_errno(CKPT_ERR_SYSTEM, "cannot write " + path_);
    }
  }
  ~TemporaryScript() { unlink(path_.c_str()); }
  TemporaryScript(const TemporaryScript&) = delete;
  TemporaryScript& operator=(const TemporaryScript&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/ckptctl-plot-XXXXXX";
};

}  // namespace

std::string gnuplot_quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < ' ') continue;
    result += c == '\'' ? std::string("''") : std::string(1, c);
  }
  return result + "'";
}

std::string gnuplot_output(const std::string& path, int width_px, int height_px) {
  const std::string size = std::to_string(width_px) + "," + std::to_string(height_px);
  std::string terminal;
  if (path.size() > 4 && path.ends_with(".svg"))
    terminal = "svg noenhanced size " + size + " dynamic background 'white'";
  else if (path.size() > 4 && path.ends_with(".png"))
    terminal = "pngcairo noenhanced size " + size;
  else
    throw Failure(CKPT_ERR_INVALID, "cannot plot to '" + path + "': name a file that ends in .png or .svg");
  return "set terminal " + terminal + "\nset output " + gnuplot_quoted(path) + "\n";
}

void run_gnuplot(const std::string& script, const std::string& path) {
  // Checks this first, because gnuplot's own message is long.
  if (!UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666)))
    throw_errno(CKPT_ERR_SYSTEM, "cannot write " + path);
  const TemporaryScript file(script);
  const int status = exit_status_of_gnuplot(file.path());
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw Failure(CKPT_ERR_SYSTEM, "gnuplot could not draw " + path + "; its message above says why");
}

}  // namespace ckpt::cli
