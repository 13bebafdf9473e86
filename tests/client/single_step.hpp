// Runs a function in a child process one machine instruction at a time. So a test sees each state of shared memory that
// a process may leave if it is killed. Only for x86-64 Linux.
#pragma once

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <functional>

namespace ckpt::testing_support {

// Calls `after(was_system_call)` in the parent after each instruction of `body`. `body` is prepared by the caller; it
// must not return to the test's own code: the child ends with it. False when the child did not end well.
inline bool single_step(const std::function<void()>& body, const std::function<void(bool was_system_call)>& after) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    int code = 0;
    try {
      body();
    } catch (...) {
      code = 1;
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  while (WIFSTOPPED(status)) {
    user_regs_struct registers{};
    ::ptrace(PTRACE_GETREGS, child, nullptr, &registers);
    // The child is a fork: its code is ours, at the same addresses.
    std::uint16_t instruction = 0;
    std::memcpy(&instruction, reinterpret_cast<const void*>(registers.rip), sizeof(instruction));
    if (::ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) != 0 || ::waitpid(child, &status, 0) != child) break;
    if (WIFSTOPPED(status) && WSTOPSIG(status) != SIGTRAP) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return false;
    }
    if (WIFSTOPPED(status)) after(instruction == 0x050f);
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace ckpt::testing_support
