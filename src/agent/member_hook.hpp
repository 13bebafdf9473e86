// MemberHook calls the operator's hook: the command or URL in the option `member_hook`. It does so when the job loses a
// node, replaces it, gets it back or goes on without it. The operator can then order a new machine, or hand back one
// that is not needed.
//
// A command runs in /bin/sh with these environment variables: CKPTENGINE_MEMBER_JOB, CKPTENGINE_MEMBER_CHANGE (lost,
// replaced, returned or released), CKPTENGINE_MEMBER_NODE, CKPTENGINE_MEMBER_REPLACEMENT ("" unless replaced) and
// CKPTENGINE_MEMBER_REASON ("" unless lost). A URL gets the same as a JSON object, by POST.
//
// Only the leader's agent calls the hook. A new leader repeats news that still holds, so a hook must tolerate
// repetition. Each call has a deadline. A call that fails is logged and not repeated.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/log.hpp"
#include "net/transport.hpp"

namespace ckpt::agent {

// What happened to a node: the values of the environment variables above.
struct MemberNews {
  std::string job;
  std::string change;
  std::string node;
  std::string replacement;
  std::string reason;
};

// Returns what a probe of the node found, as the hook's REASON: ended, silent, unreachable, answers, wrong_token,
// unauthenticated, or unknown.
const char* name_of(net::Reach reach);

// Whether the hook is a URL: it begins with http:// or https://.
bool is_url(const std::string& hook);
std::vector<std::pair<std::string, std::string>> hook_environment(const MemberNews& news);
nlohmann::json hook_body(const MemberNews& news);

// Calls the hook and waits until the call has ended, at most `timeout_ms`. Throws Failure if a command cannot be run,
// exits with a status other than 0 or takes longer. Throws Failure if a URL does not answer in that time with an HTTP
// status from 200 to 299. `stop` ends a command early. A request to a URL is not ended early, but takes at most 10 s.
void call_member_hook(const std::string& hook, const MemberNews& news, std::int64_t timeout_ms,
                      const std::stop_token& stop);

// Calls the hook on a thread of its own, one call at a time, in order. Thread-safe.
class MemberHook {
 public:
  MemberHook(std::string hook, Log log);
  // Drops the calls that wait, ends a command under way, and waits for its thread: up to 10 s if a URL is being called.
  ~MemberHook();
  MemberHook(const MemberHook&) = delete;
  MemberHook& operator=(const MemberHook&) = delete;

  // Queues a call of the hook, and does not wait for it. If 4096 calls wait already, logs that and drops this one.
  void notify(MemberNews news);

 private:
  void run();
  void call(const MemberNews& news);

  const std::string hook_;
  const Log log_;
  std::stop_source stop_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<MemberNews> waiting_;
  std::thread thread_;  // only if there is a hook
};

}  // namespace ckpt::agent
