// ckptd: the node's agent.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string_view>

#include "agent/agent.hpp"
#include "agent/process.hpp"
#include "arena/node_arena.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/unique_fd.hpp"

namespace {

using namespace ckpt;

constexpr std::int64_t ready_timeout_ms = 30'000;

constexpr const char* description =
    "ckptd, the agent of one node: holds the checkpoints of a job's ranks in memory, exchanges them with the agents "
    "of\n"
    "other nodes and brings them back after a failure. Trainers start it by themselves if the option `agent` is "
    "auto.";

std::string footer() {
  return "Every option can be given as --option VALUE or option=VALUE, as environment variable CKPTENGINE_<OPTION>, or "
         "in a JSON file:\n\n" +
         options_help(Reader::agent) +
         "\nExit status: 0 if it was asked to end, 1 on failure, 2 if another agent serves the node. SIGTERM ends it; "
         "its "
         "checkpoints stay in memory.";
}

// "--key value", "--key=value" and "key=value"; dashes in keys may stand for underscores.
OptionPairs option_pairs(const std::vector<std::string>& words) {
  OptionPairs pairs;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with("--")) {
      for (auto& pair : split_key_values({words[i]})) pairs.push_back(std::move(pair));
      continue;
    }
    const auto equals = words[i].find('=');
    std::string key = words[i].substr(2, equals == std::string::npos ? equals : equals - 2);
    std::replace(key.begin(), key.end(), '-', '_');
    if (equals != std::string::npos)
      pairs.emplace_back(key, words[i].substr(equals + 1));
    else if (i + 1 < words.size())
      pairs.emplace_back(key, words[++i]);
    else
      throw Failure(CKPT_ERR_INVALID,
                    "option --" + key + " has no value; write " + key + "=VALUE or --" + key + " VALUE");
  }
  return pairs;
}

int block_signals() {
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  sigprocmask(SIG_BLOCK, &ending, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  return signalfd(-1, &ending, SFD_CLOEXEC);
}

// Tells the waiting program that the agent serves, or why it does not.
class StartupNotifier {
 public:
  explicit StartupNotifier(UniqueFd pipe = {}) : pipe_(std::move(pipe)) {}
  void ready() { say("0"); }
  void failed(int exit_status, const std::string& sentence) {
    if (pipe_)
      say(std::to_string(exit_status) + sentence);
    else
      std::cerr << "ckptd: " << sentence << '\n';
  }

 private:
  // The exit status as one digit, then the reason.
  void say(const std::string& text) {
    if (pipe_) [[maybe_unused]]
      const auto written = ::write(pipe_.get(), text.data(), text.size());
    pipe_.reset();
  }
  UniqueFd pipe_;
};

// Raises the limit of descriptors, for connections of other nodes, the arena's files and storage: 1024 may be too few.
void allow_many_descriptors() {
  rlimit descriptors{};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return;
  descriptors.rlim_cur = descriptors.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &descriptors);
}

// This process has the token, the sessions' keys and checkpoints. So it writes no core file, and no debugger of the
// same user can attach, unless other agents must read its memory: the kernel allows both or neither.
void keep_memory_private(const Options& options) {
  rlimit core{};
  if (::getrlimit(RLIMIT_CORE, &core) == 0) {
    core.rlim_cur = 0;  // a hook that the agent starts may raise it again
    ::setrlimit(RLIMIT_CORE, &core);
  }
  if (options.transport == "tcp" && ::prctl(PR_SET_DUMPABLE, 0) != 0)
    throw_errno(CKPT_ERR_SYSTEM, "cannot keep the agent's memory out of core files");
}

// Where on_crash() writes that the agent ends. A signal handler can reach nothing else.
char crash_log[4096] = "";
// The earlier handlers of these signals, such as UCX's, which prints where it crashed.
struct sigaction handled_before[NSIG];

// The sentence for a signal that ends the agent. Code that uses it must not allocate.
std::string_view last_words(int signal) {
  switch (signal) {
    case SIGABRT:
      return "ckptd: a library has aborted this agent (SIGABRT)";
    case SIGSEGV:
      return "ckptd: this agent has crashed (SIGSEGV)";
    case SIGBUS:
      return "ckptd: this agent has crashed (SIGBUS)";
    default:
      return "ckptd: this agent has crashed";
  }
}

// A library, usually UCX, has aborted the agent or made it crash. Logs that before the agent ends.
void on_crash(int signal) {
  constexpr std::string_view rest = ". The checkpoints in memory stay. Trainers with agent=auto start it again\n";
  char line[200];
  const std::string_view begin = last_words(signal);
  std::copy(rest.begin(), rest.end(), std::copy(begin.begin(), begin.end(), line));
  const int log = ::open(crash_log, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
  [[maybe_unused]] const auto written = ::write(log < 0 ? STDERR_FILENO : log, line, begin.size() + rest.size());
  ::sigaction(signal, &handled_before[signal], nullptr);
  ::raise(signal);  // ends the process when this returns
}

void tell_of_crashes(const std::string& log_file) {
  if (log_file.size() >= sizeof crash_log) return;
  std::copy(log_file.begin(), log_file.end(), crash_log);
  struct sigaction action {};
  action.sa_handler = on_crash;
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE})
    ::sigaction(signal, &action, &handled_before[signal]);
}

int serve(const Options& options, StartupNotifier startup_notifier, agent::Foreground foreground) {
  const UniqueFd signals(block_signals());
  allow_many_descriptors();
  agent::Log log;
  try {
    arena::make_node_directory(options.node_dir());  // the log is there, too
    log = agent::open_log(options.log_file, foreground);
    tell_of_crashes(options.log_file);
    for (const std::string& warning : options.warnings) log->warn("{}", warning);
    agent::Agent agent(agent::standard_setup(options, log));
    agent::be_ended_last(log);
    startup_notifier.ready();
    pollfd entries[] = {{signals.get(), POLLIN, 0}, {agent.stop_fd(), POLLIN, 0}};
    while (::poll(entries, 2, -1) < 0 && errno == EINTR) {
    }
    log->info("ending; the checkpoints stay in memory");
    const std::string replaced = agent.replaced();
    if (replaced.empty()) return 0;
    startup_notifier.failed(agent_exists_status, replaced);
    return agent_exists_status;
  } catch (const std::exception& failure) {
    // Another agent's arena has that agent's log. This one must not write to it.
    const auto* refused = dynamic_cast<const Failure*>(&failure);
    const bool claimed = refused != nullptr && refused->status() == CKPT_ERR_CLAIMED;
    if (log && !claimed) log->critical("{}", failure.what());
    const int exit_status = claimed ? agent_exists_status : 1;
    startup_notifier.failed(exit_status, failure.what());
    return exit_status;
  }
}

// Runs in the started process: waits until the agent, its child, serves.
int await_agent(UniqueFd pipe) {
  std::string said;
  char buffer[4096];
  for (const Deadline deadline = Deadline::in_ms(ready_timeout_ms);;) {
    pollfd entry{pipe.get(), POLLIN, 0};
    const int ready = ::poll(&entry, 1, deadline.remaining_ms());
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      std::cerr << "ckptd: the agent did not start within " << ready_timeout_ms / 1000 << " s; see its log\n";
      return 1;
    }
    const ssize_t got = ::read(pipe.get(), buffer, sizeof(buffer));
    if (got <= 0) break;
    said.append(buffer, static_cast<std::size_t>(got));
  }
  if (said == "0") return 0;
  std::cerr << "ckptd: " << (said.empty() ? "the agent ended before it was ready; see its log" : said.substr(1))
            << '\n';
  return said.empty() ? 1 : said.front() - '0';
}

int serve_detached(const Options& options) {
  ::closefrom(3);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno(CKPT_ERR_SYSTEM, "cannot make a pipe to the agent");
  UniqueFd read(ends[0]), write(ends[1]);
  const pid_t child = ::fork();
  if (child < 0)
    throw_errno(CKPT_ERR_SYSTEM, "cannot start the agent's process",
                "raise the limit of processes (ulimit -u), or free memory");
  if (child > 0) {
    write.reset();
    return await_agent(std::move(read));
  }
  read.reset();
  ::setsid();
  [[maybe_unused]] const int moved = ::chdir("/");
  if (const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC)); null)
    for (const int standard : {0, 1, 2}) ::dup2(null.get(), standard);
  return serve(options, StartupNotifier(std::move(write)), agent::Foreground::no);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(description, "ckptd");
  app.footer(footer);
  app.allow_extras();

  bool detach = false;
  app.add_flag("--detach", detach, "Run in the background; return once trainers can connect");
  bool standby = false;
  app.add_flag("--standby", standby, "The same as standby=true: take the place of a node that is lost");
  app.set_version_flag("--version", std::string(CKPT_VERSION));
  CLI11_PARSE(app, argc, argv);
  try {
    ::umask(077);
    OptionPairs pairs = option_pairs(app.remaining());
    if (standby) pairs.emplace_back("standby", "true");
    const Options options = parse_options(Reader::agent, pairs, environ);
    keep_memory_private(options);
    return detach ? serve_detached(options) : serve(options, StartupNotifier(), agent::Foreground::stderr_too);
  } catch (const std::exception& failure) {
    std::cerr << "ckptd: " << failure.what() << '\n';
    return 1;
  }
}
