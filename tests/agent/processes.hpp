// Runs agents and trainers as separate processes, so that a test can kill and stop them.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "cluster.hpp"

namespace ckpt::agent::testing {

class Process {
 public:
  explicit Process(pid_t pid) : pid_(pid) {}
  Process(Process&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  ~Process() {
    if (pid_ > 0) kill(SIGKILL), wait();
  }
  Process& operator=(Process&&) = delete;

  pid_t pid() const { return pid_; }
  void kill(int signal) const { ::kill(pid_, signal); }
  // The status as of waitpid().
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }
  void wait_until_stopped() const { ::waitpid(pid_, nullptr, WUNTRACED); }

 private:
  pid_t pid_;
};

// A running ckptd. Its standard error can be read from `errors`.
struct Started {
  Process process;
  UniqueFd errors;
};
inline Started spawn(std::vector<std::string> words) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  UniqueFd read(ends[0]), write(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, write.get(), 2);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " + words[0]);
  return {Process(pid), std::move(read)};
}
inline std::string read_all(const UniqueFd& fd) {
  std::string text;
  char buffer[1024];
  for (ssize_t got = 0; (got = ::read(fd.get(), buffer, sizeof(buffer))) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  return text;
}

inline std::vector<std::string> agent_words(const AgentCluster& cluster, const std::string& node) {
  std::vector<std::string> words = {CKPTD_PROGRAM};
  for (const auto& [key, value] : cluster.options(node)) words.push_back(key + "=" + value);
  return words;
}
// On return it serves.
inline Process start_agent(const AgentCluster& cluster, const std::string& node) {
  Started started = spawn(agent_words(cluster, node));
  const bool serves = eventually([&] {
    try {
      FrameSocket::connect(cluster.node_dir(node) + "/agent.sock");
      return true;
    } catch (const Failure&) {
      return false;
    }
  });
  if (!serves) throw std::runtime_error("the agent does not serve");
  return std::move(started.process);
}

// A Trainer in a process of its own. It does one thing at a time, as the test tells it.
class TrainerProcess {
 public:
  TrainerProcess(AgentCluster& cluster, const std::string& node, std::uint32_t rank, const OptionPairs& more = {}) {
    int to[2], from[2];
    if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(to[1]);
      ::close(from[0]);
      obey(UniqueFd(to[0]), UniqueFd(from[1]), cluster, node, rank, more);
    }
    ::close(to[0]);
    ::close(from[1]);
    to_.reset(to[1]);
    from_.reset(from[0]);
    process_.emplace(pid);
  }

  enum Order : std::int64_t {
    order_create,
    order_restore,
    order_snapshot,
    order_begin_snapshot,
    order_end_snapshot,
    order_wait_commit,
    order_holds,
    order_close
  };
  // Sends a command and waits for the answer.
  std::int64_t command(Order order, std::int64_t iteration = 0) {
    begin(order, iteration);
    return answer();
  }
  void begin(Order order, std::int64_t iteration = 0) {
    const std::int64_t words[] = {order, iteration};
    if (::write(to_.get(), words, sizeof(words)) != sizeof(words)) throw std::runtime_error("the trainer is gone");
  }
  std::int64_t answer() {
    pollfd entry{from_.get(), POLLIN, 0};
    std::int64_t answer = -1;
    if (::poll(&entry, 1, static_cast<int>(std::chrono::milliseconds(wait_limit).count())) <= 0 ||
        ::read(from_.get(), &answer, sizeof(answer)) != sizeof(answer))
      throw std::runtime_error("the trainer does not answer");
    return answer;
  }
  // The sentence to the last failure.
  std::string error() {
    std::string text(static_cast<std::size_t>(command(static_cast<Order>(-1))), '\0');
    if (::read(from_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      throw std::runtime_error("the trainer does not answer");
    return text;
  }
  Process& process() { return *process_; }

 private:
  [[noreturn]] static void obey(UniqueFd from, UniqueFd to, AgentCluster& cluster, const std::string& node,
                                std::uint32_t rank, const OptionPairs& more) {
    std::unique_ptr<Trainer> trainer;
    std::int64_t words[2];
    while (::read(from.get(), words, sizeof(words)) == sizeof(words)) {
      std::int64_t answer = 0;
      switch (words[0]) {
        case order_create:
          trainer = std::make_unique<Trainer>(cluster, node, rank, 100'000, more);
          answer = trainer->created();
          break;
        case order_restore:
          answer = trainer->restore();
          if (answer == CKPT_OK && trainer->restored().found) answer = 1000 + trainer->restored().iteration;
          break;
        case order_snapshot:
          answer = trainer->snapshot(words[1]);
          break;
        case order_begin_snapshot:
          answer = trainer->begin_snapshot(words[1]);
          break;
        case order_end_snapshot:
          answer = trainer->end_snapshot();
          break;
        case order_close:
          trainer->close();
          break;
        case order_wait_commit:
          answer = trainer->wait_commit(words[1]);
          break;
        case order_holds:
          answer = trainer->holds(words[1]);
          break;
        default:
          answer = static_cast<std::int64_t>(trainer->error().size());
      }
      if (::write(to.get(), &answer, sizeof(answer)) != sizeof(answer)) break;
      if (words[0] < 0 && ::write(to.get(), trainer->error().data(), trainer->error().size()) < 0) break;
    }
    trainer.reset();
    ::_exit(0);
  }

  UniqueFd to_, from_;
  std::optional<Process> process_;
};

}  // namespace ckpt::agent::testing
