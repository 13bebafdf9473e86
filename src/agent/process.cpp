#include "agent/process.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

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
  const auto name_end = line.rfind(')');  // the name before it may contain anything
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

constexpr int last_of_all = -999;  // -1000 would mean never, even if this process itself uses up the memory

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

char Process::state() const {
  const auto stat = stat_of(pid_);
  return stat && stat->start_time == start_time_ ? stat->state : '\0';
}

bool is_process_stopped(std::int64_t pid) {
  const auto process = Process::open(static_cast<pid_t>(pid));
  return process && process->stopped();
}

void Process::kill() const { ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0); }

void be_ended_last(const Log& log, const std::string& path) {
  int now = 0;
  if (std::ifstream file(path); !(file >> now) || now <= last_of_all) return;
  std::ofstream file(path);
  errno = 0;
  if (file << last_of_all && file.flush()) return;
  log->info(
      "oom_score_adj stays {} ({}): the kernel may kill this agent when memory runs out, which does not free the "
      "memory of the checkpoints; give the agent CAP_SYS_RESOURCE, or set OOMScoreAdjust in its unit",
      now, std::generic_category().message(errno));
}

}  // namespace ckpt::agent
