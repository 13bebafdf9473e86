// Tells whoever runs the machines what becomes of the job's nodes, by a command or an HTTP request of theirs (option
// `member_hook`): to ask for a replacement, or to hand back a machine that is no longer used.
//
// A command is run by /bin/sh with CKPTENGINE_MEMBER_JOB, CKPTENGINE_MEMBER_CHANGE (lost, replaced, returned or
// released), CKPTENGINE_MEMBER_NODE, CKPTENGINE_MEMBER_REPLACEMENT ("" unless replaced) and CKPTENGINE_MEMBER_REASON
// ("" unless lost) in its environment; a URL gets the same as a JSON object, by POST. Only the leader tells; after a
// change of leader what still holds is told again, so hooks must bear that. Each call has a deadline. What fails is
// logged and not repeated.
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

struct MemberNews {
  std::string job;
  std::string change;
  std::string node;
  std::string replacement;
  std::string reason;
};

// ended, silent, unreachable, answers, wrong_token, unauthenticated peer, or unknown.
const char* name_of(net::Reach reach);

bool is_url(const std::string& hook);
std::vector<std::pair<std::string, std::string>> hook_environment(const MemberNews& news);
nlohmann::json hook_body(const MemberNews& news);

// Throws Failure when the command cannot be run, ends with another status than 0, or takes too long; or when the
// request is not answered with a status of 200 to 299. `stop` ends it early.
void call_member_hook(const std::string& hook, const MemberNews& news, std::int64_t timeout_ms, std::stop_token stop);

// One call at a time, in order, on a thread of its own. Thread-safe.
class MemberHook {
 public:
  MemberHook(std::string hook, Log log);
  ~MemberHook();
  MemberHook(const MemberHook&) = delete;
  MemberHook& operator=(const MemberHook&) = delete;

  void notify(MemberNews news);  // never waits; with too many calls waiting the newest is dropped, and logged

 private:
  void run();
  void call(const MemberNews& news);

  const std::string hook_;
  const Log log_;
  std::stop_source stop_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<MemberNews> waiting_;
  std::thread thread_;  // where there is a hook
};

}  // namespace ckpt::agent
