#include "coord/etcd_client.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "coord/etcd_entries.hpp"

namespace ckpt::coord {
namespace {

using nlohmann::json;

// Limit for one server of several, so that a server that hangs leaves time to ask the others.
constexpr std::int64_t member_timeout_ms = 1500;
constexpr std::int64_t stream_silence_ms = 10'000;
constexpr std::chrono::milliseconds between_rounds{100};

// At least 1, because libcurl takes 0 for no limit.
std::int64_t time_left_ms(const Deadline& deadline) { return std::max<std::int64_t>(deadline.remaining_ms(), 1); }

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

struct EtcdClient::Refused : std::runtime_error {
  Refused(long http_status, const HttpReply& reply) : std::runtime_error(reason_of(reply)), status(http_status) {}
  explicit Refused(const json& error)
      : std::runtime_error(text_of(error)), status(static_cast<long>(number_field(error, "http_code"))) {}

  static std::string text_of(const json& error) {
    for (const char* key : {"error", "message"})
      if (field(error, key).is_string()) return field(error, key);
    return error.dump();
  }
  static std::string reason_of(const HttpReply& reply) {
    const json body = json::parse(reply.body, nullptr, false);
    return body.is_object() ? text_of(body) : "HTTP status " + std::to_string(reply.status);
  }

  bool is(const char* part) const { return contains(what(), part); }
  // True if the token is refused, not the user. A token ends with the server that gave it, and with every change of
  // etcd's users.
  bool token_is_over() const { return is("invalid auth token") || is("revision of auth store is old"); }
  // True if this server cannot serve now. Another server may, or this one later.
  bool is_passing() const { return status >= 500 || is("leader"); }

  const long status;
};

EtcdClient::EtcdClient(EtcdAccess access) : access_(std::move(access)), http_(access_.tls) {}

json EtcdClient::call(const char* path, const json& request, Effect effect) {
  const std::string body = request.dump();
  const Deadline deadline = Deadline::in_ms(access_.timeout_ms);
  const std::size_t members = access_.endpoints.size();
  const std::int64_t wait_limit_ms = members > 1 ? member_timeout_ms : access_.timeout_ms;
  bool anybody_there = false;
  for (std::size_t attempt = 1;; ++attempt) {
    const std::size_t member = member_;
    std::optional<Failure> failure;
    bool may_be_done = false;
    try {
      const Deadline of_member = Deadline::in_ms(std::min<std::int64_t>(wait_limit_ms, deadline.remaining_ms()));
      return call_member(member, path, body, effect, of_member);
    } catch (const HttpTrouble& trouble) {
      failure = failure_of(member, trouble);
      may_be_done = trouble.was_sent();
    } catch (const Refused& refused) {
      failure = failure_of(member, refused);
      if (!refused.is_passing()) throw *failure;
      may_be_done = !refused.is("no leader");
      anybody_there = true;
    }
    pass_over(member);
    const bool all_asked = attempt % members == 0;
    if ((effect == Effect::write && may_be_done) || (all_asked && !anybody_there) || deadline.passed()) throw *failure;
    if (!all_asked) continue;
    anybody_there = false;
    std::this_thread::sleep_for(between_rounds);
  }
}

json EtcdClient::call_member(std::size_t member, const char* path, const std::string& body, Effect effect,
                             Deadline deadline) {
  for (int attempt = 0;; ++attempt) {
    const std::string authorization = token(member, deadline);
    const HttpReply reply = http_.post({access_.endpoints[member] + path, body, authorization}, time_left_ms(deadline),
                                       effect == Effect::write);
    if (reply.status == 200) {
      json message = json::parse(reply.body, nullptr, false);
      if (message.is_object()) return message;
      throw Refused(0, {reply.status, R"({"error": "its answer is not JSON"})"});
    }
    const Refused refused(reply.status, reply);
    if (!refused.token_is_over() || attempt > 0) throw refused;
    forget_token(authorization);
  }
}

void EtcdClient::stream(HttpStream& stream, const char* path, const json& request, const std::function<bool()>& goes_on,
                        const std::function<void(const json&)>& on_message) {
  const std::size_t member = member_;
  try {
    const std::string authorization = token(member, Deadline::in_ms(access_.timeout_ms));
    const auto on_line = [&](const std::string& line) {
      const json message = json::parse(line, nullptr, false);
      if (!message.is_object()) throw Refused(0, {200, R"({"error": "its answer is not JSON"})"});
      if (message.contains("error")) throw Refused(message.at("error"));
      on_message(field(message, "result"));
    };
    try {
      const HttpReply reply = stream.run(
          {access_.endpoints[member] + path, request.dump(), authorization}, stream_silence_ms,
          [&] { return goes_on() && member_ == member; }, on_line);
      if (reply.status != 200) throw Refused(reply.status, reply);
    } catch (const Refused& refused) {
      if (refused.token_is_over()) forget_token(authorization);
      throw;
    }
  } catch (const HttpTrouble& trouble) {
    pass_over(member);
    throw failure_of(member, trouble);
  } catch (const Refused& refused) {
    if (refused.is_passing()) pass_over(member);
    throw failure_of(member, refused);
  }
}

std::string EtcdClient::token(std::size_t member, Deadline deadline) {
  if (access_.user.empty()) return {};
  {
    const std::lock_guard lock(mutex_);
    if (!token_.empty()) return token_;
  }
  const json request = {{"name", access_.user}, {"password", access_.password}};
  const HttpReply reply = http_.post({access_.endpoints[member] + "/v3/auth/authenticate", request.dump(), {}},
                                     time_left_ms(deadline), false);
  const json body = json::parse(reply.body, nullptr, false);
  if (reply.status != 200 || !field(body, "token").is_string()) throw Refused(reply.status, reply);
  const std::lock_guard lock(mutex_);
  return token_ = field(body, "token");
}

void EtcdClient::forget_token(const std::string& refused) {
  const std::lock_guard lock(mutex_);
  if (token_ == refused) token_.clear();
}

void EtcdClient::pass_over(std::size_t member) {
  member_.compare_exchange_strong(member, (member + 1) % access_.endpoints.size());
}

Failure EtcdClient::failure_of(std::size_t member, const HttpTrouble& trouble) const {
  const std::string why = trouble.what();
  switch (trouble.kind()) {
    case HttpTrouble::Kind::unreachable:
      return {CKPT_ERR_SYSTEM,
              name_of(member) + " cannot be reached (" + why + "); start it, or correct the option coordination"};
    case HttpTrouble::Kind::tls:
      return {CKPT_ERR_SYSTEM, "TLS with " + name_of(member) + " fails (" + why +
                                   "); check the options etcd_ca_file, etcd_cert_file and etcd_key_file"};
    case HttpTrouble::Kind::broken:
      break;
  }
  return {CKPT_ERR_TIMEOUT, name_of(member) + " does not answer (" + why + "); check that it runs"};
}

Failure EtcdClient::failure_of(std::size_t member, const Refused& refused) const {
  const std::string who = name_of(member), why = std::string(" (") + refused.what() + ")";
  if (refused.is("space exceeded"))
    return {CKPT_ERR_NO_SPACE,
            who + " is full" + why + "; compact and defragment it and disarm its alarm (etcdctl), or raise its quota"};
  if (refused.is("user name is empty"))
    return {CKPT_ERR_INVALID, who + " requires a user" + why + "; set the options etcd_user and etcd_password_file"};
  if (refused.is("authentication is not enabled"))
    return {CKPT_ERR_INVALID, who + " has no users" + why + "; leave out the option etcd_user, or enable users there"};
  if (refused.is("authentication failed") || refused.is("user name not found"))
    return {CKPT_ERR_INVALID, who + " refuses the user " + access_.user + why +
                                  "; check the option etcd_user and the file that etcd_password_file names"};
  if (refused.is("permission denied"))
    return {CKPT_ERR_INVALID, who + " does not let the user " + access_.user + " read or write the job's keys" + why +
                                  "; grant the user a role with readwrite on their prefix"};
  if (refused.is("too large"))
    return {CKPT_ERR_NO_SPACE, who + " refuses a record of this size" + why + "; raise its --max-request-bytes"};
  if (refused.is_passing())
    return {CKPT_ERR_TIMEOUT, who + " cannot serve now" + why + "; check that most of its members run"};
  if (refused.status == 404)
    return {CKPT_ERR_SYSTEM,
            who + " is not etcd 3.4 or newer with a JSON gateway" + why + "; correct the option coordination"};
  return {CKPT_ERR_SYSTEM, who + " refuses a request" + why + "; see etcd's log"};
}

}  // namespace ckpt::coord
