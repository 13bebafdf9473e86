#include "agent/process.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace ckpt::agent {
namespace {

struct Stat {
  char state = 0;
  std::uint64_t start_time = 0;
};

std::optional<Stat> stat_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const auto name_end = line.rfind(')');  // the name before it may hold anything
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  Stat stat;
  std::string skipped;
  constexpr int start_time_field = 22, state_field = 3;
  fields >> stat.state;
  for (int field = state_field + 1; field < start_time_field; ++field) fields >> skipped;
  fields >> stat.start_time;
  return fields ? std::optional(stat) : std::nullopt;
}

}  // namespace

std::optional<Process> Process::open(pid_t pid) {
  if (pid <= 0) return std::nullopt;
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) return std::nullopt;
  const auto stat = stat_of(pid);
  if (!stat) return std::nullopt;
  return Process(pid, std::move(pidfd), stat->start_time);
}

bool Process::exited() const {
  pollfd entry{pidfd_.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

bool Process::stopped() const {
  const auto stat = stat_of(pid_);
  return stat && stat->start_time == start_time_ && (stat->state == 'T' || stat->state == 't');
}

bool is_process_stopped(std::int64_t pid) {
  const auto process = Process::open(static_cast<pid_t>(pid));
  return process && process->stopped();
}

void Process::kill() const { ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0); }

}  // namespace ckpt::agent
