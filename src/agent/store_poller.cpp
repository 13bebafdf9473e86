#include "agent/store_poller.hpp"

#include <algorithm>
#include <random>
#include <span>
#include <utility>

#include "agent/record_codec.hpp"
#include "base/error.hpp"
#include "base/thread.hpp"
#include "protocol/seating.hpp"

namespace ckpt::agent {
namespace {

using std::chrono::milliseconds;

constexpr StorePoller::Intervals without_watch{milliseconds(150), milliseconds(300)};
constexpr StorePoller::Intervals of_a_watch_that_tells{milliseconds(2000), milliseconds(30'000)};
constexpr std::size_t listed_per_ms = 100;  // records, to all agents together

// All agents find their watches silent at the same time, when the root has died. So that they do not all read at once,
// each is slower or faster than the others by up to a quarter.
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
                                      "; stop the job's agents (ckptctl stop), remove its records with ckptctl gc "
                                      "--records, and start it again: what is in memory stays");
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
      watch_(store.watch([this](const coord::Entry& entry) { heard(entry); })),
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

void StorePoller::swap(const protocol::SwapRoot& swap) { ask(&Work::root, swap); }
void StorePoller::swap(protocol::SwapLife swap) { ask(&Work::life, std::move(swap)); }
void StorePoller::read(const protocol::ReadSeats& read) { ask(&Work::seats, read); }
void StorePoller::remove(const protocol::RemoveSeats& removal) { ask(&Work::removal, removal); }

void StorePoller::heard(const coord::Entry& entry) {
  {
    const std::lock_guard lock(mutex_);
    heard_at_ = Clock::now();
    work_.told[entry.key] = entry;
  }
  wake_.notify_all();
}

// With the lock.
bool StorePoller::is_told() const { return heard_at_ && Clock::now() - *heard_at_ < trust_; }

// With the lock.
const StorePoller::Intervals& StorePoller::intervals() const {
  if (watch_ == nullptr) return without_watch;
  return is_told() ? of_a_watch_that_tells : silent_;
}

// With the lock.
StorePoller::Clock::time_point StorePoller::next_poll() const {
  if (!polled_at_) return {};
  const auto due = *polled_at_ + scaled(intervals().records, pace_);
  return is_told() ? std::min(due, *heard_at_ + trust_) : due;
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
    take(work.told);
    if (is_due) {
      attempt(reading, [&] { poll(); });
      polled_at_ = Clock::now();
    }
  }
}

// With the lock. What takes several steps waits until all is done that came before.
StorePoller::Work StorePoller::next_work() {
  Work next;
  std::swap(next.root, work_.root);
  std::swap(next.told, work_.told);
  if (step_) return next;
  if (work_.life)
    std::swap(next.life, work_.life);
  else if (work_.seats)
    std::swap(next.seats, work_.seats);
  else
    std::swap(next.removal, work_.removal);
  return next;
}

// A swap that failed is not answered, lest the core asks again at once; it does so after a while.
void StorePoller::begin(const Work& work) {
  if (work.root)
    attempt(writing, [&] {
      store_.put_if("root", to_text(work.root->record), work.root->expected_revision);
      read_root();
    });
  if (work.life) {
    const auto swap = std::make_shared<const protocol::SwapLife>(*work.life);
    step_ = Step{seating, [this, swap] { write_life(swap, 0); }};
  }
  if (work.seats) {
    const auto read = std::make_shared<protocol::SeatsRead>(protocol::SeatsRead{work.seats->name, {}});
    step_ = Step{seating, [this, read] { read_seats(read, 0); }};
  }
  if (work.removal)
    step_ = Step{writing, [this, before = work.removal->before_life] {
                   auto keys = store_.keys(std::string(seats_prefix));
                   std::erase_if(keys, [&](const auto& key) { return life_of_seats(key).value_or(before) >= before; });
                   remove_seats(std::move(keys));
                 }};
}

// Where it fails, those after it are not taken; all is well only after the last one.
void StorePoller::take_step() {
  if (const auto step = std::exchange(step_, std::nullopt)) attempt(step->access, step->take);
}

// The seats first: no life's record names any that are not there. Those that are there already are the same.
void StorePoller::write_life(const std::shared_ptr<const protocol::SwapLife>& swap, std::size_t number) {
  if (number == 0 && !swap->seats.empty()) seats_ = {swap->record.seats, swap->seats};
  if (number * protocol::seats_per_record >= swap->seats.size()) {
    store_.put_if("life", to_text(swap->record), swap->expected_revision);
    read_life();
    return;
  }
  put_seats(seats_, number);
  step_ = Step{seating, [this, swap, number] { write_life(swap, number + 1); }};
}

// One record of them.
void StorePoller::put_seats(const protocol::SeatsRead& seats, std::size_t number) {
  const std::size_t begin = number * protocol::seats_per_record;
  const std::size_t count = std::min(protocol::seats_per_record, seats.seats.size() - begin);
  const std::span some = std::span(seats.seats).subspan(begin, count);
  store_.put_if(seats_key(seats.name, number), to_text(protocol::SeatsRecord{{some.begin(), some.end()}}), 0);
}

void StorePoller::read_seats(const std::shared_ptr<protocol::SeatsRead>& read, std::size_t number) {
  if (read->seats.size() >= read->name.count) {
    if (!protocol::is_named(read->name, read->seats)) throw_unusable(seats_key(read->name, 0), "is not what it was");
    seats_ = *read;
    return handlers_.seats(*read);
  }
  const std::string key = seats_key(read->name, number);
  const auto entry = store_.get(key);
  if (!entry) {
    read_life();  // of a later life by now, it may be: then they were removed
    if (life_.record.seats != read->name) return;
    if (seats_.name != read->name) {
      handlers_.seats({read->name, {}});  // a leader does without them in the end
      throw_unusable(key, "has vanished");
    }
    put_seats(seats_, number);
    step_ = Step{seating, [this, read, number] { read_seats(read, number); }};
    return;
  }
  const auto more = parsed(seats_record(entry->value), key).seats;
  read->seats.insert(read->seats.end(), more.begin(), more.end());
  step_ = Step{seating, [this, read, number] { read_seats(read, number + 1); }};
}

void StorePoller::remove_seats(std::vector<std::string> keys) {
  if (keys.empty()) return;
  store_.remove(keys.back());
  keys.pop_back();
  step_ = Step{writing, [this, keys = std::move(keys)] { remove_seats(keys); }};
}

void StorePoller::attempt(Access access, const std::function<void()>& body) {
  try {
    body();
    if (access != seating || !step_) note(access, "");
  } catch (const Failure& failure) {
    // Of what takes several steps only that stays in trouble which no access can mend.
    note(access == seating && failure.status() != CKPT_ERR_CORRUPT ? writing : access, failure.what());
  } catch (const std::exception& failure) {
    note(access, failure.what());
  }
}

constexpr const char* can_be[] = {"the coordination store can be read", "the coordination store can be written",
                                  "the seats of the job's life can be read and written",
                                  "the records of all nodes can be read"};

void StorePoller::note(Access access, const std::string& trouble) {
  if (trouble.empty()) return end_trouble(access, can_be[access]);
  if (exchange_trouble(access, trouble).empty()) log_->error("{}; will try again and again", trouble);
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

// What the store told by itself. Of a record that was removed, reading tells whether it is there again. That nothing is
// wrong only a poll finds.
void StorePoller::take(const std::map<std::string, coord::Entry>& told) {
  std::vector<coord::NodeEntry> nodes;
  for (const auto& [key, entry] : told) try {
      // What is not newer than what was read may have been told before that.
      if (key == "root") entry.revision > root_.revision ? take_root(entry) : read_root();
      if (key == "life") entry.revision > life_.revision ? take_life(entry) : read_life();
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
  read_root();
  read_life();
  if (!nodes_are_due()) return;
  nodes_polled_at_ = Clock::now();  // where it fails, too: then all try it
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

// Records that nobody removes one by one. So the store was wiped, or set back to a time before they were made.
bool StorePoller::put_own_back() {
  const auto& [node, token] = *own_;
  bool was_gone = coord::put_back_node(store_, node);
  if (!token.empty() && !store_.get("token")) was_gone = store_.put_if("token", token, 0).has_value() || was_gone;
  if (was_gone && handlers_.notice)
    handlers_.notice("records of node " + node.name +
                     " had vanished from the coordination store; this agent has written them again");
  return was_gone;
}

// Where an agent started while they were gone, it may have taken this node's number. The younger one gives way.
void StorePoller::keep_number(const std::vector<coord::NodeEntry>& nodes) {
  const coord::NodeEntry& own = own_->node;
  for (const coord::NodeEntry& other : nodes)
    if (other.id == own.id && other.name != own.name && other.agent_id > own.agent_id) coord::take_number(store_, own);
}

void StorePoller::heed_rival(const std::optional<coord::Entry>& entry) {
  const std::string rival = entry ? entry->value : "";
  if (std::exchange(rival_, rival) == rival || rival.empty() || !handlers_.notice) return;
  handlers_.notice("an agent on " + rival + " tried to serve node " + own_->node.name +
                   ", too, and was refused; give each machine a node name of its own (option node)");
}

// Each of N agents lists all N nodes. So that the store can answer, and where a watch tells of them anyway, that is
// done the more rarely the more there are, and not at the very moment at which all watches fall silent.
bool StorePoller::nodes_are_due() {
  if (!nodes_polled_at_) return true;
  const std::lock_guard lock(mutex_);
  const milliseconds share(watch_ == nullptr ? 0 : nodes_listed_ * nodes_listed_ / listed_per_ms);
  const bool fell_silent = heard_at_ && !is_told();
  const auto since = fell_silent ? std::max(*nodes_polled_at_, *heard_at_ + trust_) : *nodes_polled_at_;
  return Clock::now() - since >= scaled(std::max(intervals().nodes, share), pace_);
}

void StorePoller::read_root() { take_root(store_.get("root")); }
void StorePoller::read_life() { take_life(store_.get("life")); }

void StorePoller::take_root(const std::optional<coord::Entry>& entry) {
  root_.revision = entry ? entry->revision : 0;
  if (!entry) return handlers_.root({});
  if (entry->value != root_.text) {
    root_ = {entry->value, parsed(root_record(entry->value), "root")};
    end_trouble(writing, "another agent writes to the coordination store");  // it need not be this one again
  }
  handlers_.root({entry->revision, root_.record});
}

void StorePoller::take_life(const std::optional<coord::Entry>& entry) {
  life_.revision = entry ? entry->revision : 0;
  if (entry && entry->value != life_.text) {
    life_ = {entry->value, parsed(life_record(entry->value), "life")};
    note(seating, "");  // it may have others now
  }
  handlers_.life(entry ? protocol::LifeRead{entry->revision, life_.record} : protocol::LifeRead{});
  life_seen_ = life_seen_ || entry.has_value();
  if (entry || !life_seen_) return;
  if (own_) put_own_back();
  throw Failure(CKPT_ERR_CORRUPT,
                "the job's records have vanished from the coordination store; its agents write them again");
}

}  // namespace ckpt::agent
