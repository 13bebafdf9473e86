#include "agent/member_hook.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/thread.hpp"
#include "base/unique_fd.hpp"
#include "coord/http.hpp"

namespace ckpt::agent {
namespace {

constexpr std::int64_t hook_timeout_ms = 60'000;
constexpr std::size_t waiting_max = 4096;
constexpr std::int64_t request_timeout_ms = 10'000;  // nothing can end it earlier
constexpr int look_ms = 100;

// The command gets its own process group, so that all its children can be ended with it. It inherits nothing of the
// agent's: signals have their defaults, its input is empty, and no descriptor keeps a port of the agent's open.
struct Apart {
  Apart() {
    posix_spawnattr_init(&attributes);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addclosefrom_np(&files, 3);
  }
  ~Apart() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t files;
};

std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& more) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    // The command may start an agent, which must not get this agent's options.
    if (!std::string_view(*entry).starts_with("CKPTENGINE_")) all.emplace_back(*entry);
  }
  for (const auto& [name, value] : more) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

pid_t start_shell(const std::string& command, const MemberNews& news) {
  std::vector<std::string> words{"/bin/sh", "-c", command};
  std::vector<std::string> environment = environment_with(hook_environment(news));
  const Apart apart;
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, "/bin/sh", &apart.files, &apart.attributes, pointers_to(words).data(),
                                  pointers_to(environment).data());
  if (error != 0)
    throw Failure(CKPT_ERR_SYSTEM,
                  std::string("cannot start /bin/sh, which runs the command: ") + std::strerror(error));
  return pid;
}

void run_command(const std::string& command, const MemberNews& news, std::int64_t timeout_ms,
                 const std::stop_token& stop) {
  const pid_t pid = start_shell(command, news);
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  bool has_ended = false;
  for (const Deadline deadline = Deadline::in_ms(timeout_ms);
       !has_ended && !deadline.passed() && !stop.stop_requested();) {
    pollfd entry{process.get(), POLLIN, 0};
    has_ended = ::poll(&entry, 1, std::min(deadline.remaining_ms(), look_ms)) == 1 && (entry.revents & POLLIN) != 0;
  }
  if (!has_ended) ::kill(-pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!has_ended && !stop.stop_requested())
    throw Failure(CKPT_ERR_TIMEOUT,
                  "the command did not end within " + std::to_string(timeout_ms) +
                      " ms and was killed; make it faster, or let it start its work in the background");
  if (has_ended && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
    throw Failure(CKPT_ERR_SYSTEM, WIFEXITED(status)
                                       ? "the command ended with status " + std::to_string(WEXITSTATUS(status)) +
                                             "; correct it (option member_hook)"
                                       : "signal " + std::to_string(WTERMSIG(status)) +
                                             " ended the command; correct it (option member_hook)");
}

void post(const std::string& url, const MemberNews& news, std::int64_t timeout_ms) {
  try {
    const auto reply = coord::Http({}).post({url, hook_body(news).dump(), ""}, timeout_ms, true);
    if (reply.status < 200 || reply.status > 299)
      throw Failure(CKPT_ERR_SYSTEM, "the server of the URL answered with HTTP status " + std::to_string(reply.status) +
                                         "; see that server's log");
  } catch (const coord::HttpTrouble& trouble) {
    throw Failure(CKPT_ERR_SYSTEM, trouble.what());
  }
}

}  // namespace

const char* name_of(net::Reach reach) {
  switch (reach) {
    case net::Reach::answers:
      return "answers";
    case net::Reach::silent:
      return "silent";
    case net::Reach::ended:
      return "ended";
    case net::Reach::wrong_token:
      return "wrong_token";
    case net::Reach::unauthenticated_peer:
      return "unauthenticated";
    case net::Reach::unreachable:
      return "unreachable";
    case net::Reach::unknown:
      break;
  }
  return "unknown";
}

bool is_url(const std::string& hook) { return hook.starts_with("http://") || hook.starts_with("https://"); }

std::vector<std::pair<std::string, std::string>> hook_environment(const MemberNews& news) {
  return {{"CKPTENGINE_MEMBER_JOB", news.job},
          {"CKPTENGINE_MEMBER_CHANGE", news.change},
          {"CKPTENGINE_MEMBER_NODE", news.node},
          {"CKPTENGINE_MEMBER_REPLACEMENT", news.replacement},
          {"CKPTENGINE_MEMBER_REASON", news.reason}};
}

nlohmann::json hook_body(const MemberNews& news) {
  return {{"job", news.job},
          {"change", news.change},
          {"node", news.node},
          {"replacement", news.replacement},
          {"reason", news.reason}};
}

void call_member_hook(const std::string& hook, const MemberNews& news, std::int64_t timeout_ms,
                      const std::stop_token& stop) {
  if (is_url(hook))
    post(hook, news, std::min(timeout_ms, request_timeout_ms));
  else
    run_command(hook, news, timeout_ms, stop);
}

MemberHook::MemberHook(std::string hook, Log log) : hook_(std::move(hook)), log_(std::move(log)) {
  if (!hook_.empty()) thread_ = start_thread("ckptd-hook", [this] { run(); });
}

MemberHook::~MemberHook() {
  {
    const std::lock_guard lock(mutex_);
    stop_.request_stop();
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void MemberHook::notify(MemberNews news) {
  if (hook_.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() < waiting_max) {
      waiting_.push_back(std::move(news));
    } else {
      log_->error("the member hook was not called when node {} was {}, because too many earlier calls have not ended",
                  news.node, news.change);
    }
  }
  wake_.notify_all();
}

void MemberHook::run() {
  for (;;) {
    MemberNews news;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_.stop_requested() || !waiting_.empty(); });
      if (stop_.stop_requested()) return;
      news = std::move(waiting_.front());
      waiting_.pop_front();
    }
    call(news);
  }
}

void MemberHook::call(const MemberNews& news) {
  try {
    call_member_hook(hook_, news, hook_timeout_ms, stop_.get_token());
    log_->info("called the member hook: node {} is {}", news.node, news.change);
  } catch (const Failure& failure) {
    log_->error("the member hook failed when node {} was {}: {}", news.node, news.change, failure.what());
  }
}

}  // namespace ckpt::agent
