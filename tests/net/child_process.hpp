// ChildProcess is a program that a test starts, with pipes to its standard input and output. The destructor kills it.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"

namespace ckpt::net::testing {

class ChildProcess {
 public:
  explicit ChildProcess(std::vector<std::string> command) {
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    std::vector<char*> arguments;
    for (auto& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const int failed = ::posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    to_child_.reset(in[1]);
    from_child_.reset(out[0]);
    if (failed != 0) throw std::runtime_error("cannot start " + command[0]);
  }
  ~ChildProcess() { kill_now(); }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  std::string read_line() {
    std::string line;
    for (char c = 0; ::read(from_child_.get(), &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }
  void write_line(std::string line) {
    line += '\n';
    [[maybe_unused]] const auto written = ::write(to_child_.get(), line.data(), line.size());
  }
  void kill_now() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // Returns when the child no longer runs.
  void stop_now() {
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void wake() { ::kill(pid_, SIGCONT); }

 private:
  pid_t pid_ = -1;
  UniqueFd to_child_;
  UniqueFd from_child_;
};

}  // namespace ckpt::net::testing
