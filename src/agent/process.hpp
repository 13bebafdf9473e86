// Another process and what the kernel says about it. Holds a pidfd, so a later process with the same pid is never
// mistaken for it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "base/unique_fd.hpp"

namespace ckpt::agent {

class Process {
 public:
  // Returns nothing if no process has this pid.
  static std::optional<Process> open(pid_t pid);

  pid_t pid() const { return pid_; }
  // In clock ticks since boot. Pid and start time together identify a process for good.
  std::uint64_t start_time() const { return start_time_; }
  int fd() const { return pidfd_.get(); }  // readable once the process has exited

  // True once it is certain that none of its threads runs any more.
  bool exited() const;
  // Stopped by SIGSTOP or by a debugger.
  bool stopped() const;
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

}  // namespace ckpt::agent
