#include "agent/store_poller.hpp"

#include <algorithm>
#include <random>
#include <utility>

#include "agent/record_codec.hpp"
#include "base/error.hpp"
#include "base/thread.hpp"

namespace ckpt::agent {
namespace {

using std::chrono::milliseconds;

constexpr StorePoller::Intervals without_watch{milliseconds(150), milliseconds(300)};
constexpr StorePoller::Intervals of_a_watch_that_tells{milliseconds(2000), milliseconds(30'000)};

// All agents find their watches silent at the same time, when the root has died. So that they do not all read at once,
// and all nodes' records at that, each is slower or faster than the others by up to a quarter.
StorePoller::Intervals of_a_silent_watch(std::int64_t lease_ms) {
  std::random_device random;
  const std::int64_t share = std::uniform_int_distribution(75, 125)(random);
  return {milliseconds(lease_ms * share / 400), milliseconds(lease_ms * share / 50)};
}

template <class Record>
Record parsed(const std::optional<Record>& record, const char* key) {
  if (!record)
    throw Failure(CKPT_ERR_CORRUPT, std::string("the coordination record \"") + key +
                                        "\" cannot be understood; stop the job's agents and remove its records with "
                                        "ckptctl gc");
  return *record;
}

}  // namespace

StorePoller::StorePoller(coord::Store& store, std::int64_t lease_ms, Handlers handlers, Log log)
    : store_(store),
      handlers_(std::move(handlers)),
      log_(std::move(log)),
      trust_(lease_ms / 2),
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

void StorePoller::swap(const protocol::SwapRoot& swap) {
  {
    const std::lock_guard lock(mutex_);
    work_.root = swap;
  }
  wake_.notify_all();
}

void StorePoller::swap(const protocol::SwapLife& swap) {
  {
    const std::lock_guard lock(mutex_);
    work_.life = swap;
  }
  wake_.notify_all();
}

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
  const auto due = *polled_at_ + intervals().records;
  return is_told() ? std::min(due, *heard_at_ + trust_) : due;
}

void StorePoller::run() {
  for (;;) {
    Work work;
    bool is_due = false;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_until(lock, next_poll(), [&] { return stop_ || work_.root || work_.life || !work_.told.empty(); });
      if (stop_) return;
      work = std::exchange(work_, {});
      is_due = Clock::now() >= next_poll();
    }
    swap_records(work);
    take(work.told);
    if (is_due) {
      attempt(reading, [&] { poll(); });
      polled_at_ = Clock::now();
    }
  }
}

// One that failed is not answered, lest the core asks again at once; it does with the next poll.
void StorePoller::swap_records(const Work& work) {
  if (work.root)
    attempt(writing, [&] {
      store_.put_if("root", to_text(work.root->record), work.root->expected_revision);
      read_root();
    });
  if (work.life)
    attempt(writing, [&] {
      store_.put_if("life", to_text(work.life->record), work.life->expected_revision);
      read_life();
    });
}

void StorePoller::attempt(Access access, const std::function<void()>& body) {
  try {
    body();
    note(access, "");
  } catch (const std::exception& failure) {
    note(access, failure.what());
  }
}

void StorePoller::note(Access access, const std::string& trouble) {
  std::string before;
  {
    const std::lock_guard lock(mutex_);
    before = std::exchange(troubles_[access], trouble);
  }
  if (before.empty() && !trouble.empty()) log_->error("{}; will try again and again", trouble);
  if (!before.empty() && trouble.empty())
    log_->info("the coordination store can be {} again", access == reading ? "read" : "written");
}

std::string StorePoller::trouble() const {
  const std::lock_guard lock(mutex_);
  return troubles_[reading].empty() ? troubles_[writing] : troubles_[reading];
}

// What the store told by itself. Of a record that was removed, reading tells whether it is there again. That nothing is
// wrong only a poll finds.
void StorePoller::take(const std::map<std::string, coord::Entry>& told) {
  std::vector<coord::NodeEntry> nodes;
  for (const auto& [key, entry] : told) try {
      if (key == "root") entry.revision != 0 ? take_root(entry) : read_root();
      if (key == "life") entry.revision != 0 ? take_life(entry) : read_life();
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
  const auto interval = [&] {
    const std::lock_guard lock(mutex_);
    return intervals().nodes;
  }();
  if (nodes_polled_at_ && Clock::now() - *nodes_polled_at_ < interval) return;
  handlers_.nodes(coord::registered_nodes(store_));
  nodes_polled_at_ = Clock::now();
}

void StorePoller::read_root() { take_root(store_.get("root")); }
void StorePoller::read_life() { take_life(store_.get("life")); }

void StorePoller::take_root(const std::optional<coord::Entry>& entry) {
  if (!entry) return handlers_.root({});
  if (entry->value != root_.text) root_ = {entry->value, parsed(root_record(entry->value), "root")};
  handlers_.root({entry->revision, root_.record});
}

void StorePoller::take_life(const std::optional<coord::Entry>& entry) {
  if (entry && entry->value != life_.text) life_ = {entry->value, parsed(life_record(entry->value), "life")};
  handlers_.life(entry ? protocol::LifeRead{entry->revision, life_.record} : protocol::LifeRead{});
  if (!entry && life_seen_)
    throw Failure(CKPT_ERR_CORRUPT,
                  "the job's records have vanished from the coordination store; stop the job's agents (ckptctl stop) "
                  "and start it again, to make new ones");
  life_seen_ = entry.has_value();
}

}  // namespace ckpt::agent
