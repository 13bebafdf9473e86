#include "client/health_watch.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "base/thread.hpp"

namespace ckpt::client {
namespace {

constexpr std::chrono::milliseconds look_every{250};
constexpr std::int64_t heartbeats_missed_max = 8;  // an agent that is only slow misses fewer
constexpr std::int64_t silence_least_ms = 1'000;
constexpr std::int64_t notified_late_ms = 1'000;         // the agent stores its verdict and its commit separately
constexpr std::chrono::seconds settled_after{2};         // shorter changes are not reported
constexpr std::chrono::seconds notified_anew_after{10};  // then another reason has really taken over
constexpr std::chrono::minutes notified_again_after{1};

void put(std::span<char> to, std::string_view text) {
  const std::size_t length = std::min(text.size(), to.size() - 1);
  std::memcpy(to.data(), text.data(), length);
  to[length] = '\0';
}

void say(ckpt_health_t& health, ckpt_protection state, const char* reason, const std::string& text,
         const char* advice) {
  health.state = state;
  put(health.reason, reason);
  put(health.text, text);
  put(health.advice, advice);
}

// Whether the verdict is about another node, rank or kind.
bool differ(const ckpt_health_t& a, const ckpt_health_t& b) {
  return a.state != b.state || a.rank != b.rank || std::strcmp(a.reason, b.reason) != 0 ||
         std::strcmp(a.node, b.node) != 0;
}

bool is_news_for_people(const ckpt_health_t& health) {
  return health.state != CKPT_PROTECTED && std::strcmp(health.reason, "beginning") != 0;
}

ckpt_health_t passed_on(const arena::HealthNews& news) {
  ckpt_health_t health{};
  health.struct_size = sizeof health;
  health.state = static_cast<ckpt_protection>(news.state);
  health.rank = news.rank == UINT32_MAX ? -1 : static_cast<std::int64_t>(news.rank);
  health.since_ms = news.lasts_ms;
  health.at_risk_ms = news.at_risk_ms;
  health.at_risk_iterations = news.at_risk_iterations;
  health.allowed_ms = news.allowed_ms;
  health.committed_incarnation = news.committed ? news.committed.incarnation() : 0;
  health.committed_iteration = news.committed ? news.committed.iteration() : -1;
  health.copies_now = news.copies_now;
  health.copies_wanted = news.copies;
  health.parity_now = news.parity_now;
  health.parity_wanted = news.parity;
  put(health.reason, news.reason);
  put(health.node, news.node);
  put(health.text, news.text);
  put(health.advice, news.advice);
  put(health.suspicion, news.suspicion);
  return health;
}

}  // namespace

ckpt_health_t judge(const HealthFacts& facts) {
  ckpt_health_t health = passed_on(facts.news.value_or(arena::HealthNews{}));
  if (!facts.news) {
    health.state = CKPT_DEGRADED;
    put(health.reason, "beginning");
    put(health.text, "the agent has not said yet whether the job is protected");
    health.committed_iteration = -1;
  }
  if (health.allowed_ms <= 0) health.allowed_ms = facts.unprotected_after_ms;
  const std::int64_t silence_ms = std::max(silence_least_ms, heartbeats_missed_max * facts.heartbeat_ms);
  const bool is_silent = facts.silent_ms > silence_ms;
  const bool is_overdue = facts.quiet_ms > health.allowed_ms;
  if (is_silent || !facts.is_connected || facts.is_superseded) put(health.suspicion, "");  // nobody watches this rank
  if (is_silent) health.at_risk_ms = std::max(health.at_risk_ms, facts.quiet_ms);
  const auto of_this_node = [&](std::int64_t since_ms) {
    put(health.node, facts.node);
    health.rank = -1;
    health.since_ms = since_ms;
    return is_overdue || since_ms > health.allowed_ms ? CKPT_NOT_PROTECTED : CKPT_DEGRADED;
  };
  if (facts.is_superseded) {
    say(health, CKPT_NOT_PROTECTED, "superseded", "this trainer belongs to an earlier incarnation of the job",
        "stop this process, and restart the rank if nobody has done so");
  } else if (!facts.is_connected) {
    const auto state = of_this_node(facts.silent_ms);
    say(health, state, "agent_gone", "the agent of node " + facts.node + " is gone: " + facts.why_disconnected,
        "start ckptd on this node, or see its log for why it ends");
  } else if (is_silent) {
    const auto state = of_this_node(facts.silent_ms);
    say(health, state, "agent_silent", "the agent of node " + facts.node + " does not answer, as if it were stopped",
        "check ckptd with ckptctl doctor; SIGKILL ends it, and its memory stays");
  } else if (health.state == CKPT_PROTECTED && facts.quiet_ms > health.allowed_ms + notified_late_ms) {
    of_this_node(facts.quiet_ms - health.allowed_ms);
    say(health, CKPT_NOT_PROTECTED, "stalled", "this trainer has learned of no commit for longer than allowed",
        "see ckptctl health and ckptctl status");
  }
  return health;
}

HealthWatch::HealthWatch(Settings settings, Source source)
    : settings_(std::move(settings)),
      source_(std::move(source)),
      heartbeat_at_(Clock::now()),
      committed_at_(heartbeat_at_),
      notified_at_(heartbeat_at_),
      changed_at_(heartbeat_at_) {
  look();
  thread_ = start_thread("ckpt-health", [this] { run(); });
}

HealthWatch::~HealthWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

ckpt_health_t HealthWatch::now() const {
  const std::lock_guard lock(mutex_);
  return health_;
}

void HealthWatch::on_change(ckpt_health_callback callback, void* user) {
  const std::lock_guard lock(calling_);
  callback_ = callback;
  user_ = user;
  has_new_callback_ = true;
}

void HealthWatch::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (wake_.wait_for(lock, look_every, [this] { return stop_; })) return;
    }
    look();
    const ckpt_health_t health = now();
    const std::lock_guard lock(calling_);
    if (std::exchange(has_new_callback_, false)) notified_.reset();
    if (callback_ != nullptr && is_due(health)) call(health);
  }
}

void HealthWatch::look() {
  const auto now = Clock::now();
  if (auto control = source_.control(); control != watched_) {
    watched_ = std::move(control);
    heartbeats_ = watched_ ? watched_->health().heartbeats() : 0;
    heartbeat_at_ = now;
  }
  HealthFacts facts;
  if (watched_) {
    if (const std::uint64_t heartbeats = watched_->health().heartbeats(); heartbeats != heartbeats_) {
      heartbeats_ = heartbeats;
      heartbeat_at_ = now;
    }
    if (const CheckpointId committed = watched_->committed(); committed != committed_) {
      committed_ = committed;
      committed_at_ = now;
    }
    if (auto news = watched_->health().read()) news_ = std::move(news);
    facts.is_superseded = watched_->fenced() != 0 && !watched_->halt();  // a halted rank may rejoin
  }
  const auto ms_since = [&](Clock::time_point then) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(now - then).count();
  };
  facts.is_connected = source_.is_connected();
  if (!facts.is_connected) facts.why_disconnected = source_.why_disconnected();
  facts.silent_ms = ms_since(heartbeat_at_);
  facts.quiet_ms = ms_since(committed_at_);
  facts.heartbeat_ms = settings_.heartbeat_ms;
  facts.unprotected_after_ms = settings_.unprotected_after_ms;
  facts.node = settings_.node;
  facts.news = news_;
  const ckpt_health_t health = judge(facts);
  const std::lock_guard lock(mutex_);
  if (differ(health, health_)) changed_at_ = now;
  health_ = health;
}

// Reports suspicions and a change to the worst state at once, other changes when they have lasted, and a lasting state
// once a minute.
bool HealthWatch::is_due(const ckpt_health_t& health) {
  const auto now = Clock::now();
  if (std::strcmp(health.suspicion, notified_ ? notified_->suspicion : "") != 0) return true;
  if (!notified_)
    return is_news_for_people(health) && (health.state == CKPT_NOT_PROTECTED || now - changed_at_ >= settled_after);
  if (!differ(health, *notified_)) return is_news_for_people(health) && now - notified_at_ >= notified_again_after;
  const bool is_worse = health.state == CKPT_NOT_PROTECTED && notified_->state != CKPT_NOT_PROTECTED;
  return is_worse || health.state == CKPT_PROTECTED ||
         (now - changed_at_ >= settled_after && now - notified_at_ >= notified_anew_after);
}

void HealthWatch::call(const ckpt_health_t& health) {
  notified_ = health;
  notified_at_ = Clock::now();
  callback_(&health, user_);
}

}  // namespace ckpt::client
