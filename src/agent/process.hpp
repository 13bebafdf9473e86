// What the kernel says of another process. Holds a pidfd, so that the process cannot be mistaken for a later one that
// has got its number.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "base/unique_fd.hpp"

namespace ckpt::agent {

class Process {
 public:
  // Nothing when there is none of that number (any more).
  static std::optional<Process> open(pid_t pid);

  pid_t pid() const { return pid_; }
  // In clock ticks since boot; with the number it names a process for good.
  std::uint64_t start_time() const { return start_time_; }
  int fd() const { return pidfd_.get(); }  // readable once the process has exited

  // Proven: none of its threads runs any more.
  bool exited() const;
  // SIGSTOPped, or held by a debugger.
  bool stopped() const;
  void kill() const;

 private:
  Process(pid_t pid, UniqueFd pidfd, std::uint64_t start_time)
      : pid_(pid), pidfd_(std::move(pidfd)), start_time_(start_time) {}

  pid_t pid_;
  UniqueFd pidfd_;
  std::uint64_t start_time_;
};

// SIGSTOP, or a debugger. False where it is not there.
bool is_process_stopped(std::int64_t pid);

}  // namespace ckpt::agent
