#include "client/agent_launcher.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/unique_fd.hpp"

namespace ckpt::client {
namespace {

// Looks beside this library or program, as the build and the installation place it, then in PATH.
std::string find_ckptd(const Options& options) {
  if (!options.ckptd.empty()) return options.ckptd;
  Dl_info self{};
  if (::dladdr(reinterpret_cast<const void*>(&start_agent), &self) != 0 && self.dli_fname != nullptr) {
    std::error_code error;
    const auto directory = std::filesystem::canonical(self.dli_fname, error).parent_path();
    for (const char* candidate : {"ckptd", "../bin/ckptd", "../../bin/ckptd"})
      if (const auto path = directory / candidate; !error && ::access(path.c_str(), X_OK) == 0) return path.string();
  }
  return "ckptd";
}

struct Pipe {
  UniqueFd read, write;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno(CKPT_ERR_SYSTEM, "cannot make a pipe to start the agent with");
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
};

class SpawnSettings {
 public:
  explicit SpawnSettings(int error_fd) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawn_file_actions_addopen(&actions_, 0, "/dev/null", O_RDWR, 0);
    ::posix_spawn_file_actions_adddup2(&actions_, 0, 1);
    ::posix_spawn_file_actions_adddup2(&actions_, error_fd, 2);
    ::posix_spawn_file_actions_addclosefrom_np(&actions_, 3);
    ::posix_spawnattr_init(&attributes_);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setsigdefault(&attributes_, &all);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

pid_t spawn(const std::string& program, const std::vector<std::string>& words, int error_fd) {
  std::vector<char*> arguments = {const_cast<char*>(program.c_str()), const_cast<char*>("--detach")};
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const SpawnSettings settings(error_fd);
  pid_t pid = -1;
  const int error =
      ::posix_spawnp(&pid, program.c_str(), settings.actions(), settings.attributes(), arguments.data(), environ);
  if (error == 0) return pid;
  errno = error;
  throw_errno(CKPT_ERR_NO_AGENT,
              "cannot run the agent's program " + program +
                  "; install it (pip install the wheel) or build it (./dev build), or set the option "
                  "ckptd to its path");
}

// The end of the process, as waitpid() reports it. Nothing if it did not end in time: then it is killed.
std::optional<int> wait_for_exit(pid_t pid, Deadline deadline) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd entry{process.get(), POLLIN, 0};
  int ready = 0;
  do ready = ::poll(&entry, 1, deadline.remaining_ms());
  while (ready < 0 && errno == EINTR);
  if (ready == 0) ::kill(pid, SIGKILL);
  int status = 0;  // unchanged if the caller ignores SIGCHLD, because the kernel then reaps the process (ECHILD)
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return ready == 0 ? std::nullopt : std::optional(status);
}

std::string first_line(int fd) {
  char text[4096];
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  const ssize_t got = ::read(fd, text, sizeof(text));
  const std::string line(text, got > 0 ? static_cast<std::size_t>(got) : 0);
  return line.substr(0, line.find('\n'));
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return "was killed by signal " + std::to_string(WTERMSIG(status));
  return "ended with status " + std::to_string(WEXITSTATUS(status)) +
         " and gave no reason; check that the option ckptd names the agent's program";
}

}  // namespace

void start_agent(const Options& options, Deadline deadline) {
  const std::string program = find_ckptd(options);
  Pipe errors;
  const pid_t pid = spawn(program, to_key_values(options, Reader::agent), errors.write.get());
  errors.write.reset();
  const auto status = wait_for_exit(pid, deadline);
  if (!status) throw Failure(CKPT_ERR_NO_AGENT, program + " did not start in time; see its log, " + options.log_file);
  if (WIFEXITED(*status) && (WEXITSTATUS(*status) == 0 || WEXITSTATUS(*status) == agent_exists_status)) return;
  const std::string complaint = first_line(errors.read.get());
  throw Failure(CKPT_ERR_NO_AGENT, complaint.empty() ? program + " " + how_it_ended(*status) : complaint);
}

}  // namespace ckpt::client
