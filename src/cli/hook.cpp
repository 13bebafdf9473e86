// `ckptctl hook` shows what the agents would call when something happens to a node, and lets people try it.
#include "agent/member_hook.hpp"
#include "base/error.hpp"
#include "cli/commands.hpp"

namespace ckpt::cli {
namespace {

constexpr std::int64_t try_timeout_ms = 60'000;

// Quotes the text as one word for a shell.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string call_text(const std::string& hook, const agent::MemberNews& news) {
  if (agent::is_url(hook)) return "POST " + hook + "\n" + agent::hook_body(news).dump() + "\n";
  std::string text;
  for (const auto& [name, value] : agent::hook_environment(news)) text += name + "=" + quoted(value) + " ";
  return text + "/bin/sh -c " + quoted(hook) + "\n";
}

}  // namespace

Result hook(const HookRequest& request) {
  if (request.hook.empty())
    throw Failure(CKPT_ERR_INVALID, "no hook is set: name a command or URL with the option member_hook");
  if (request.change == "replaced" && request.replacement.empty())
    throw Failure(CKPT_ERR_INVALID, "the change is 'replaced', but no replacement is named; give --replacement NODE");
  const agent::MemberNews news{request.job, request.change, request.node, request.replacement, request.reason};
  Result result;
  result.text = call_text(request.hook, news);
  result.json = {{"hook", request.hook}, {"news", agent::hook_body(news)}, {"called", !request.dry_run}};
  if (request.dry_run) return result;
  try {
    agent::call_member_hook(request.hook, news, try_timeout_ms, {});
  } catch (const Failure& failure) {
    throw Failure(failure.status(), "the member hook failed: " + std::string(failure.what()));
  }
  return result;
}

}  // namespace ckpt::cli
