// Tells the agent whether another process, such as a trainer, lives, is stopped or has exited.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "agent/log.hpp"
#include "base/unique_fd.hpp"

namespace ckpt::agent {

// Process refers to another process by a pidfd. So it never means a later process with the same pid.
class Process {
 public:
  // Returns nothing if no process has this pid.
  static std::optional<Process> open(pid_t pid);

  pid_t pid() const { return pid_; }
  // Start time in clock ticks since boot. Pid and start time together identify a process for good.
  std::uint64_t start_time() const { return start_time_; }
  int fd() const { return pidfd_.get(); }  // readable once the process has exited

  // True once it is certain that none of the process's threads runs any more.
  bool exited() const;
  // The state of its main thread, as in /proc/PID/stat: R running, S sleeping, D waiting within the kernel, T stopped,
  // t stopped by a debugger. 0: the process is gone.
  char state() const;
  bool stopped() const { return state() == 'T' || state() == 't'; }
  void kill() const;

 private:
  Process(pid_t pid, UniqueFd pidfd, std::uint64_t start_time)
      : pid_(pid), pidfd_(std::move(pidfd)), start_time_(start_time) {}

  pid_t pid_;
  UniqueFd pidfd_;
  std::uint64_t start_time_;
};

// Returns whether SIGSTOP or a debugger has stopped the process. False if there is no such process.
bool is_process_stopped(std::int64_t pid);

// Asks the kernel's OOM killer to kill this process, the agent, last. The agent's death would free no memory, since the
// arena stays. And nobody could use the node's checkpoints until the next agent starts. If the kernel refuses, logs a
// warning. Tests give another `path`.
void be_ended_last(const Log& log, const std::string& path = "/proc/self/oom_score_adj");

}  // namespace ckpt::agent
