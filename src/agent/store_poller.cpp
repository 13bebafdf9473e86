#include "agent/store_poller.hpp"

#include <algorithm>
#include <random>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "base/thread.hpp"
#include "core/leader/rank_assignments.hpp"
#include "core/record_codec.hpp"

namespace ckpt::agent {
namespace {

using std::chrono::milliseconds;

constexpr StorePoller::Intervals without_watch{milliseconds(150), milliseconds(300)};
constexpr StorePoller::Intervals of_a_watch_that_tells{milliseconds(2000), milliseconds(30'000)};
constexpr std::size_t listed_per_ms = 100;  // records, to all agents together

// How many assignments one record has.
std::size_t per_record(const std::vector<core::RankAssignment>& assignments) {
  const bool take =
      std::any_of(assignments.begin(), assignments.end(), [](const auto& each) { return !each.takes.empty(); });
  return take ? core::taking_assignments_per_record : core::assignments_per_record;
}

// When the leader has died, all agents find their watches silent at the same time. So that they do not all read at
// once, each is slower or faster than the others by up to a quarter.
double random_pace() {
  std::random_device random;
  return std::uniform_real_distribution(0.75, 1.25)(random);
}

StorePoller::Intervals of_a_silent_watch(std::int64_t lease_ms) {
  return {milliseconds(lease_ms / 4), milliseconds(lease_ms * 2)};
}

milliseconds scaled(milliseconds interval, double by) {
  return milliseconds(static_cast<std::int64_t>(static_cast<double>(interval.count()) * by));
}

[[noreturn]] void throw_unusable(const std::string& key, const std::string& why) {
  throw Failure(CKPT_ERR_CORRUPT, "the coordination record \"" + key + "\" " + why +
                                      ". Stop the job's agents (ckptctl stop), remove the job's records (ckptctl gc "
                                      "--records), and start the job again. The checkpoints in memory stay");
}

template <class Record>
Record parsed(const std::optional<Record>& record, const std::string& key) {
  if (!record) throw_unusable(key, "cannot be understood");
  return *record;
}

}  // namespace

StorePoller::StorePoller(coord::Store& store, std::int64_t lease_ms, Handlers handlers, Log log, std::optional<Own> own)
    : store_(store),
      handlers_(std::move(handlers)),
      log_(std::move(log)),
      own_(std::move(own)),
      trust_(lease_ms / 2),
      pace_(random_pace()),
      silent_(of_a_silent_watch(lease_ms)),
      watch_(store.watch([this](const coord::Entry& entry) { on_change(entry); })),
      thread_(start_thread("ckptd-store", [this] { run(); })) {}

StorePoller::~StorePoller() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

template <class Field, class Request>
void StorePoller::ask(Field Work::*field, Request request) {
  {
    const std::lock_guard lock(mutex_);
    work_.*field = std::move(request);
  }
  wake_.notify_all();
}

void StorePoller::carry_out(const core::SwapLeaderRecord& swap) { ask(&Work::leader, swap); }
void StorePoller::carry_out(core::SwapIncarnationRecord swap) { ask(&Work::incarnation_record, std::move(swap)); }
void StorePoller::carry_out(const core::ReadAssignments& read) { ask(&Work::assignments, read); }
void StorePoller::carry_out(const core::RemoveAssignments& removal) { ask(&Work::removal, removal); }

void StorePoller::on_change(const coord::Entry& entry) {
  {
    const std::lock_guard lock(mutex_);
    received_at_ = Clock::now();
    work_.watched[entry.key] = entry;
  }
  wake_.notify_all();
}

// Call it with the lock held.
bool StorePoller::is_notified() const { return received_at_ && Clock::now() - *received_at_ < trust_; }

// Call it with the lock held.
const StorePoller::Intervals& StorePoller::intervals() const {
  if (watch_ == nullptr) return without_watch;
  return is_notified() ? of_a_watch_that_tells : silent_;
}

// Call it with the lock held.
StorePoller::Clock::time_point StorePoller::next_poll() const {
  if (!polled_at_) return {};
  const auto due = *polled_at_ + scaled(intervals().records, pace_);
  return is_notified() ? std::min(due, *received_at_ + trust_) : due;
}

void StorePoller::run() {
  for (;;) {
    Work work;
    bool is_due = false;
    {
      std::unique_lock lock(mutex_);
      if (!step_) wake_.wait_until(lock, next_poll(), [&] { return stop_ || work_.is_any(); });
      if (stop_) return;
      work = next_work();
      is_due = Clock::now() >= next_poll();
    }
    begin(work);
    take_step();
    take(work.watched);
    if (is_due) {
      attempt(reading, [&] { poll(); });
      polled_at_ = Clock::now();
    }
  }
}

// Call it with the lock held. Work that takes several steps waits until all earlier work is done.
StorePoller::Work StorePoller::next_work() {
  Work next;
  std::swap(next.leader, work_.leader);
  std::swap(next.watched, work_.watched);
  if (step_) return next;
  if (work_.incarnation_record)
    std::swap(next.incarnation_record, work_.incarnation_record);
  else if (work_.assignments)
    std::swap(next.assignments, work_.assignments);
  else
    std::swap(next.removal, work_.removal);
  return next;
}

// Begins the work. A swap that fails is not answered: the core then repeats it after a while, not at once.
void StorePoller::begin(const Work& work) {
  if (work.leader)
    attempt(writing, [&] {
      store_.put_if("leader", core::to_text(work.leader->record), work.leader->expected_revision);
      read_leader_record();
    });
  if (work.incarnation_record) {
    const auto swap = std::make_shared<const core::SwapIncarnationRecord>(*work.incarnation_record);
    step_ = Step{assignment_access, [this, swap] { write_incarnation_record(swap, 0); }};
  }
  if (work.assignments) {
    const auto read = std::make_shared<core::AssignmentsRead>(core::AssignmentsRead{work.assignments->name, {}});
    step_ = Step{assignment_access, [this, read] { read_assignments(read, 0); }};
  }
  if (work.removal)
    step_ = Step{writing, [this, before = work.removal->before_incarnation] {
                   auto keys = store_.keys(std::string(core::assignments_prefix));
                   std::erase_if(keys, [&](const auto& key) {
                     return core::incarnation_of_assignments(key).value_or(before) >= before;
                   });
                   remove_assignments(std::move(keys));
                 }};
}

// Takes one step of work. If the step fails, the work ends there. The trouble ends only after the last step.
void StorePoller::take_step() {
  if (const auto step = std::exchange(step_, std::nullopt)) attempt(step->access, step->take);
}

// Writes the rank assignments first, so that no incarnation's record names assignments that are not in the store.
// Writing existing ones again changes nothing.
void StorePoller::write_incarnation_record(const std::shared_ptr<const core::SwapIncarnationRecord>& swap,
                                           std::size_t number) {
  if (number == 0 && !swap->assignments.empty()) assignments_ = {swap->record.assignments, swap->assignments};
  if (number * per_record(swap->assignments) >= swap->assignments.size()) {
    store_.put_if("incarnation", core::to_text(swap->record), swap->expected_revision);
    read_incarnation_record();
    return;
  }
  put_assignments(assignments_, number);
  step_ = Step{assignment_access, [this, swap, number] { write_incarnation_record(swap, number + 1); }};
}

// Writes one record of these rank assignments, unless the store has it.
void StorePoller::put_assignments(const core::AssignmentsRead& assignments, std::size_t number) {
  const std::size_t most = per_record(assignments.assignments), begin = number * most;
  const std::size_t count = std::min(most, assignments.assignments.size() - begin);
  const std::span some = std::span(assignments.assignments).subspan(begin, count);
  store_.put_if(core::assignments_key(assignments.name, number),
                core::to_text(core::AssignmentsRecord{{some.begin(), some.end()}}), 0);
}

void StorePoller::read_assignments(const std::shared_ptr<core::AssignmentsRead>& read, std::size_t number) {
  if (read->assignments.size() >= read->name.count) {
    if (!core::is_named(read->name, read->assignments))
      throw_unusable(core::assignments_key(read->name, 0), "has changed, although it may never change");
    assignments_ = *read;
    return handlers_.assignments(*read);
  }
  const std::string key = core::assignments_key(read->name, number);
  const auto entry = store_.get(key);
  if (!entry) {
    read_incarnation_record();  // a later incarnation may have begun and removed them
    if (incarnation_record_.record.assignments != read->name) return;
    if (assignments_.name != read->name) {
      handlers_.assignments({read->name, {}});  // nothing was found; after some time a leader goes on without them
      throw_unusable(key, "is gone");
    }
    put_assignments(assignments_, number);
    step_ = Step{assignment_access, [this, read, number] { read_assignments(read, number); }};
    return;
  }
  const auto more = parsed(core::assignments_record(entry->value), key).assignments;
  read->assignments.insert(read->assignments.end(), more.begin(), more.end());
  step_ = Step{assignment_access, [this, read, number] { read_assignments(read, number + 1); }};
}

void StorePoller::remove_assignments(std::vector<std::string> keys) {
  if (keys.empty()) return;
  store_.remove(keys.back());
  keys.pop_back();
  step_ = Step{writing, [this, keys = std::move(keys)] { remove_assignments(keys); }};
}

void StorePoller::attempt(Access access, const std::function<void()>& body) {
  try {
    body();
    if (access != assignment_access || !step_) note(access, "");
  } catch (const Failure& failure) {
    // Only a damaged record is trouble of the assignments, because no other access can end that.
    note(access == assignment_access && failure.status() != CKPT_ERR_CORRUPT ? writing : access, failure.what());
  } catch (const std::exception& failure) {
    note(access, failure.what());
  }
}

constexpr const char* can_be[] = {"the coordination store can be read", "the coordination store can be written",
                                  "the rank assignments of the job's incarnation can be read and written",
                                  "the records of all nodes can be read"};

void StorePoller::note(Access access, const std::string& trouble) {
  if (trouble.empty()) return end_trouble(access, can_be[access]);
  if (exchange_trouble(access, trouble).empty()) log_->error("{}; this agent keeps trying", trouble);
}

void StorePoller::end_trouble(Access access, const char* how) {
  if (!exchange_trouble(access, "").empty()) log_->info("{} again", how);
}

std::string StorePoller::exchange_trouble(Access access, const std::string& trouble) {
  const std::lock_guard lock(mutex_);
  return std::exchange(troubles_[access], trouble);
}

std::string StorePoller::trouble() const {
  const std::lock_guard lock(mutex_);
  for (const std::string& trouble : troubles_)
    if (!trouble.empty()) return trouble;
  return "";
}

// Takes what the store reported by itself. If a record was removed, reading tells whether it exists again. Only a poll
// finds out that the trouble is over.
void StorePoller::take(const std::map<std::string, coord::Entry>& watched) {
  std::vector<coord::NodeEntry> nodes;
  for (const auto& [key, entry] : watched) try {
      // A report that is not newer than the last read may have come before it.
      if (key == "leader") entry.revision > leader_record_.revision ? take_leader_record(entry) : read_leader_record();
      if (key == "incarnation")
        entry.revision > incarnation_record_.revision ? take_incarnation_record(entry) : read_incarnation_record();
      if (own_ && key == coord::rival_key(own_->node.name) && entry.revision != 0) heed_rival(entry);
      if (own_ && key == coord::node_key(own_->node.name) && entry.revision == 0) put_own_back();
      if (!key.starts_with("nodes/") || entry.revision == 0) continue;
      if (auto node = coord::node_entry(entry)) nodes.push_back(std::move(*node));
    } catch (const std::exception& failure) {
      note(reading, failure.what());
    }
  if (!nodes.empty()) handlers_.nodes(nodes);
}

void StorePoller::poll() {
  read_leader_record();
  read_incarnation_record();
  if (!nodes_are_due()) return;
  nodes_polled_at_ = Clock::now();  // also after a failure; otherwise all agents would try it
  std::vector<std::string> damaged;
  const auto nodes = coord::registered_nodes(store_, &damaged);
  note(listing, damaged.empty() ? "" : damaged.front());
  nodes_listed_ = nodes.size();
  handlers_.nodes(nodes);
  keep_own(nodes);
}

void StorePoller::keep_own(const std::vector<coord::NodeEntry>& nodes) {
  if (!own_) return;
  put_own_back();
  keep_number(nodes);
  heed_rival(store_.get(coord::rival_key(own_->node.name)));
}

// Nobody removes these records one by one. So the store was wiped, or set back to a time before they were written.
bool StorePoller::put_own_back() {
  const auto& [node, token] = *own_;
  bool was_gone = coord::put_back_node(store_, node);
  if (!token.empty() && !store_.get("token")) was_gone = store_.put_if("token", token, 0).has_value() || was_gone;
  if (was_gone && handlers_.notice)
    handlers_.notice("records of node " + node.name +
                     " had vanished from the coordination store; this agent has written them again");
  return was_gone;
}

// An agent that started while they were gone may have taken this node's number. The younger one gives way.
void StorePoller::keep_number(const std::vector<coord::NodeEntry>& nodes) {
  const coord::NodeEntry& own = own_->node;
  for (const coord::NodeEntry& other : nodes)
    if (other.id == own.id && other.name != own.name && other.agent_id > own.agent_id) coord::take_number(store_, own);
}

void StorePoller::heed_rival(const std::optional<coord::Entry>& entry) {
  const std::string rival = entry ? entry->value : "";
  if (std::exchange(rival_, rival) == rival || rival.empty() || !handlers_.notice) return;
  handlers_.notice("an agent on " + rival + " tried to serve node " + own_->node.name +
                   ", too, and was refused; give each machine a different node name (option node)");
}

// Each of N agents lists all N nodes. To spare the store, large jobs list more rarely while a watch reports changes,
// and not at the moment when all watches fall silent.
bool StorePoller::nodes_are_due() {
  if (!nodes_polled_at_) return true;
  const std::lock_guard lock(mutex_);
  const milliseconds share(watch_ == nullptr ? 0 : nodes_listed_ * nodes_listed_ / listed_per_ms);
  const bool fell_silent = received_at_ && !is_notified();
  const auto since = fell_silent ? std::max(*nodes_polled_at_, *received_at_ + trust_) : *nodes_polled_at_;
  return Clock::now() - since >= scaled(std::max(intervals().nodes, share), pace_);
}

void StorePoller::read_leader_record() { take_leader_record(store_.get("leader")); }
void StorePoller::read_incarnation_record() { take_incarnation_record(store_.get("incarnation")); }

void StorePoller::take_leader_record(const std::optional<coord::Entry>& entry) {
  leader_record_.revision = entry ? entry->revision : 0;
  if (!entry) return handlers_.leader({});
  if (entry->value != leader_record_.text) {
    leader_record_ = {entry->value, parsed(core::leader_record(entry->value), "leader")};
    end_trouble(writing, "another agent writes to the coordination store");  // this agent need not write it any more
  }
  handlers_.leader({entry->revision, leader_record_.record});
}

void StorePoller::take_incarnation_record(const std::optional<coord::Entry>& entry) {
  incarnation_record_.revision = entry ? entry->revision : 0;
  if (entry && entry->value != incarnation_record_.text) {
    incarnation_record_ = {entry->value, parsed(core::incarnation_record(entry->value), "incarnation")};
    note(assignment_access, "");  // it may have other ones now
  }
  handlers_.incarnation_record(entry ? core::IncarnationRecordRead{entry->revision, incarnation_record_.record}
                                     : core::IncarnationRecordRead{});
  incarnation_seen_ = incarnation_seen_ || entry.has_value();
  if (entry || !incarnation_seen_) return;
  if (own_) put_own_back();
  throw Failure(CKPT_ERR_CORRUPT,
                "the job's records are gone from the coordination store; the agents write them again. Find out what "
                "removed them");
}

}  // namespace ckpt::agent
