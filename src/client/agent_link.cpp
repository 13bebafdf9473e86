#include "client/agent_link.hpp"

#include <algorithm>
#include <array>
#include <random>

#include "arena/node_arena.hpp"
#include "base/error.hpp"
#include "base/same_file.hpp"
#include "base/thread.hpp"

namespace ckpt::client {
namespace {

constexpr std::int64_t look_interval_ms = 50;  // how often the watcher checks that the agent lives
constexpr std::int64_t look_soon_ms = 1;
constexpr std::int64_t pause_first_ms = 50;                // between attempts to connect again
constexpr std::int64_t pause_longest_ms = 5'000;           // an agent that does not start costs one process per attempt
constexpr std::int64_t pause_for_the_living_max_ms = 500;  // a living agent may answer at any moment

std::uint64_t random_instance() {
  std::random_device random;
  return (std::uint64_t{random()} << 32 | random()) | 1;
}

// For the one writer. Touches the slots' pages now, so that the first capture does not have to.
arena::Segment map_slots(UniqueFd fd) {
  auto segment =
      arena::Segment::attach(std::move(fd), arena::Segment::Access::write, "the segment that the agent sent");
  segment.populate(1);
  return segment;
}

// Training waits for this answer. Allows the time to touch all slots of a shard, and no longer, in case the agent is
// stopped. One gigabyte per second was measured, and all ranks of a node ask at once.
Deadline reserve_deadline(const SlotSizes& sizes) {
  constexpr std::uint64_t least_ms = 5'000;
  constexpr std::uint64_t slots_max = 4;
  constexpr std::uint64_t bytes_per_ms = 64 << 10;
  std::uint64_t bytes = 0;
  for (const SlotSize& size : sizes) bytes += size.bytes + size.layout_bytes;
  return Deadline::in_ms(static_cast<std::int64_t>(least_ms + slots_max * bytes / bytes_per_ms));
}

bool are_slots_of(const Slots& slots, const std::vector<UniqueFd>& files) {
  return std::equal(slots.begin(), slots.end(), files.begin(), files.end(),
                    [](const auto& segment, const auto& file) { return is_same_file(segment.fd(), file.get()); });
}

// A restarted agent has the segments that it finds. These stay mapped as they are, and pinned.
std::shared_ptr<Slots> reserve_on(AgentConnection& connection, const Reservation& wanted,
                                  const std::shared_ptr<Slots>& before) {
  const auto& [sizes, shortage] = wanted;
  auto slots_wanted = nlohmann::json::array();
  for (const SlotSize& size : sizes)
    slots_wanted.push_back({{"shard", size.shard}, {"bytes", size.bytes}, {"layout_bytes", size.layout_bytes}});
  Frame answer = connection.ask({{"type", "reserve"}, {"slots", std::move(slots_wanted)}, {"shortage", shortage}},
                                reserve_deadline(sizes));
  check_answer(answer.body);
  if (answer.fds.size() != sizes.size())
    throw Failure(CKPT_ERR_INTERNAL, "the agent's answer to reserve has " + std::to_string(answer.fds.size()) +
                                         " segments instead of " + std::to_string(sizes.size()) +
                                         ": this is a bug in ckptengine; report it with the agent's log");
  if (before && are_slots_of(*before, answer.fds)) return before;
  auto slots = std::make_shared<Slots>();
  for (UniqueFd& fd : answer.fds) slots->push_back(map_slots(std::move(fd)));
  return slots;
}

}  // namespace

AgentLink::AgentLink(const Options& options, OnWords on_words)
    : options_(options), on_words_(std::move(on_words)), self_(std::make_unique<OpenEngine>(random_instance())) {
  install(AgentConnection::open(options_, self_->instance(), 0), nullptr);
  watcher_ = start_thread("ckpt-link", [this] { watch(); });
}

AgentLink::~AgentLink() { end_watcher(); }

void AgentLink::end_watcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  control()->ring_trainer();
  if (watcher_.joinable()) watcher_.join();
}

Failure AgentLink::why_disconnected() const {
  const std::lock_guard lock(mutex_);
  return disconnection();
}

// Call it with the lock held. Not a copy: copies of an exception share one text, which the watcher replaces.
Failure AgentLink::disconnection() const { return {why_disconnected_.status(), why_disconnected_.what()}; }

AgentSession AgentLink::session() const {
  const std::lock_guard lock(mutex_);
  return session_;
}

std::optional<AgentSession> AgentLink::session_now() const {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return std::nullopt;
  return session_;
}

std::shared_ptr<arena::Control> AgentLink::control() const {
  const std::lock_guard lock(control_mutex_);
  return control_;
}

void AgentLink::install(AgentConnection connection, std::shared_ptr<Slots> slots) {
  {
    const std::lock_guard lock(control_mutex_);
    control_ = connection.control();
  }
  {
    const std::lock_guard lock(mutex_);
    if (incarnation_.load(std::memory_order_acquire) != 0) comm_.follow(connection.control());
    session_ = {connection.control(), std::move(slots)};
    connection_ = std::move(connection);
    session_number_.fetch_add(1, std::memory_order_release);
    connected_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

void AgentLink::joined(std::uint64_t incarnation) {
  const std::lock_guard lock(mutex_);
  incarnation_.store(incarnation, std::memory_order_release);
  comm_.follow(session_.control);
}

// Call it with the lock held.
void AgentLink::lost(const Failure& failure) {
  connection_.reset();
  why_disconnected_ = Failure(CKPT_ERR_NO_AGENT, failure.what());
  connected_.store(false, std::memory_order_release);
}

Frame AgentLink::ask(nlohmann::json request, const nlohmann::json& again, Deadline deadline,
                     const std::function<bool()>& meanwhile) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait_until(lock, deadline.at(), [&] { return connection_.has_value() || disowned(); });
    if (!connection_) throw disconnection();
    try {
      Frame answer = connection_->ask(request, deadline, meanwhile);
      check_answer(answer.body);
      return answer;
    } catch (const Failure& failure) {
      if (connection_->usable()) throw;
      lost(failure);
      if (failure.status() == CKPT_ERR_TIMEOUT) throw;
      request = again;
    }
  }
}

void AgentLink::reserve(const Reservation& wanted) {
  const std::lock_guard lock(mutex_);
  if (!connection_) throw disconnection();
  try {
    session_.slots = reserve_on(*connection_, wanted, session_.slots ? session_.slots : slots_before_);
    slots_before_.reset();
  } catch (const Failure& failure) {
    if (!connection_->usable()) lost(failure);
    throw;
  }
  reserved_ = wanted;
  session_number_.fetch_add(1, std::memory_order_release);
}

void AgentLink::leave(Deadline deadline) {
  const std::lock_guard lock(mutex_);
  session_.slots.reset();
  stop_.store(true, std::memory_order_release);
  slots_before_.reset();
  if (!connection_) return AgentConnection::say_goodbye(options_, self_->instance());
  try {
    connection_->ask({{"type", "bye"}}, deadline);
  } catch (const Failure&) {
    // The agent is gone, or reads it later.
  }
}

// ---- Another incarnation in the same process ----

void AgentLink::rejoin(Deadline deadline) {
  end_watcher();
  leave_session(deadline);
  try {
    install(claim_anew(deadline), nullptr);
  } catch (const Failure& failure) {
    const std::lock_guard lock(mutex_);
    lost(failure);
    throw;
  }
  stop_.store(false, std::memory_order_release);
  watcher_ = start_thread("ckpt-link", [this] { watch(); });
}

// The agent takes what the engine has captured, and then treats the rank as if its process had ended.
void AgentLink::leave_session(Deadline deadline) {
  const std::lock_guard lock(mutex_);
  try {
    if (connection_) connection_->ask({{"type", "bye"}}, deadline);
  } catch (const Failure&) {
    // It learns from the next claim that this engine is no longer open.
  }
  connection_.reset();
  if (session_.slots) slots_before_ = std::exchange(session_.slots, nullptr);
  reserved_.reset();
  comm_.leave();
  incarnation_.store(0, std::memory_order_release);
  disowned_.store(false, std::memory_order_release);
  self_ = std::make_unique<OpenEngine>(random_instance());
}

// The agent may just be starting again.
AgentConnection AgentLink::claim_anew(Deadline deadline) const {
  for (;;) {
    try {
      return AgentConnection::open(options_, self_->instance(), 0);
    } catch (const Failure& failure) {
      if (failure.status() != CKPT_ERR_NO_AGENT || deadline.passed()) throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_first_ms));
  }
}

// ---- The watcher's thread ----

void AgentLink::watch() {
  std::int64_t pause_ms = pause_first_ms;
  std::int64_t longest_ms = pause_longest_ms;
  AgentSession watched = session();
  std::uint32_t number = session_number();
  while (!stop_.load(std::memory_order_acquire)) {
    if (number != session_number()) {
      number = session_number();
      watched = session();
    }
    if (watch_words(watched)) {
      pause_ms = pause_first_ms;
      continue;
    }
    if (watched.control->fenced() == 0 && !disowned()) {
      const auto failure = reconnect();
      if (!failure) continue;
      longest_ms = *failure == CKPT_ERR_TIMEOUT ? pause_for_the_living_max_ms : pause_longest_ms;
    }
    pause_ms = std::min(pause_ms, longest_ms);
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(pause_ms), [&] { return stop_.load(); });
    pause_ms *= 2;
  }
}

// Looks once, or until the doorbell rings. Returns false if the agent is gone.
bool AgentLink::watch_words(const AgentSession& session) {
  const std::uint32_t seen = session.control->agent_doorbell();
  const Look next = on_words_(*session.control);
  if (!connected()) return false;
  session.control->wait_agent_doorbell(seen, Deadline::in_ms(next == Look::soon ? look_soon_ms : look_interval_ms));
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return true;  // a request is under way and will notice by itself
  give_up_damaged_slots();
  if (connection_ && connection_->hung_up())
    lost(Failure(CKPT_ERR_NO_AGENT, "the node's agent has ended; this process looks for a new one"));
  return connection_.has_value();
}

// Call it with the lock held. A write to the truncated part of a file would kill training (SIGBUS), so the engine asks
// for new slots before the next snapshot. Between two looks nothing helps.
void AgentLink::give_up_damaged_slots() {
  const auto& slots = session_.slots;
  if (!slots || std::all_of(slots->begin(), slots->end(), [](const auto& slot) { return slot.is_whole_file(); }))
    return;
  session_.slots.reset();
  session_number_.fetch_add(1, std::memory_order_release);
}

// Returns nothing once it is connected again; otherwise the reason.
std::optional<ckpt_status> AgentLink::reconnect() {
  std::optional<Reservation> wanted;
  std::shared_ptr<Slots> before;
  {
    const std::lock_guard lock(mutex_);
    wanted = reserved_;
    before = session_.slots;
  }
  try {
    if (arena::was_stopped(options_.node_dir()))
      throw Failure(CKPT_ERR_NO_AGENT,
                    "the agent of node " + options_.node +
                        " was ended on purpose (ckptctl stop); to take snapshots again, start ckptd on that node");
    auto connection = AgentConnection::open(options_, self_->instance(), incarnation_.load(std::memory_order_acquire));
    auto slots = wanted ? reserve_on(connection, *wanted, before) : nullptr;
    install(std::move(connection), std::move(slots));
    return std::nullopt;
  } catch (const Failure& failure) {
    return refused(failure);
  } catch (const std::exception& failure) {
    return refused(Failure(CKPT_ERR_SYSTEM, failure.what()));
  }
}

ckpt_status AgentLink::refused(const Failure& failure) {
  const bool disowned = failure.status() == CKPT_ERR_SUPERSEDED;
  {
    const std::lock_guard lock(mutex_);
    why_disconnected_ = Failure(disowned ? CKPT_ERR_SUPERSEDED : CKPT_ERR_NO_AGENT, failure.what());
    if (disowned) disowned_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  return failure.status();
}

}  // namespace ckpt::client
