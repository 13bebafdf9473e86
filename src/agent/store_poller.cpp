#include "agent/store_poller.hpp"

#include <chrono>
#include <utility>

#include "agent/record_codec.hpp"
#include "base/error.hpp"
#include "base/thread.hpp"

namespace ckpt::agent {
namespace {

constexpr std::chrono::milliseconds poll_interval{150};
constexpr int polls_per_nodes_poll = 2;

template <class Record>
Record parsed(const std::optional<Record>& record, const char* key) {
  if (!record)
    throw Failure(CKPT_ERR_CORRUPT, std::string("the coordination record \"") + key +
                                        "\" cannot be understood; stop the job's agents and remove its records with "
                                        "ckptctl gc");
  return *record;
}

}  // namespace

StorePoller::StorePoller(coord::Store& store, Handlers handlers, Log log)
    : store_(store),
      handlers_(std::move(handlers)),
      log_(std::move(log)),
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
    root_swap_ = swap;
  }
  wake_.notify_all();
}

void StorePoller::swap(const protocol::SwapLife& swap) {
  {
    const std::lock_guard lock(mutex_);
    life_swap_ = swap;
  }
  wake_.notify_all();
}

void StorePoller::run() {
  auto due = std::chrono::steady_clock::now();
  for (int polls = 0;;) {
    std::optional<protocol::SwapRoot> root_swap;
    std::optional<protocol::SwapLife> life_swap;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_until(lock, due, [&] { return stop_ || root_swap_ || life_swap_; });
      if (stop_) return;
      root_swap = std::exchange(root_swap_, std::nullopt);
      life_swap = std::exchange(life_swap_, std::nullopt);
    }
    // One that failed is not answered, lest the core asks again at once; it does with the next poll.
    if (root_swap)
      attempt(writing, [&] {
        store_.put_if("root", to_text(root_swap->record), root_swap->expected_revision);
        read_root();
      });
    if (life_swap)
      attempt(writing, [&] {
        store_.put_if("life", to_text(life_swap->record), life_swap->expected_revision);
        read_life();
      });
    if (std::chrono::steady_clock::now() < due) continue;
    attempt(reading, [&] { poll(polls++ % polls_per_nodes_poll == 0); });
    due = std::chrono::steady_clock::now() + poll_interval;
  }
}

void StorePoller::attempt(Access access, const std::function<void()>& body) {
  try {
    body();
    note(access, "");
  } catch (const Failure& failure) {
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

void StorePoller::poll(bool nodes_too) {
  read_root();
  read_life();
  if (nodes_too) handlers_.nodes(coord::registered_nodes(store_));
}

void StorePoller::read_root() {
  const auto entry = store_.get("root");
  handlers_.root(entry ? protocol::RootRead{entry->revision, parsed(root_record(entry->value), "root")}
                       : protocol::RootRead{});
}

void StorePoller::read_life() {
  const auto entry = store_.get("life");
  handlers_.life(entry ? protocol::LifeRead{entry->revision, parsed(life_record(entry->value), "life")}
                       : protocol::LifeRead{});
  if (!entry && life_seen_)
    throw Failure(CKPT_ERR_CORRUPT,
                  "the job's records have vanished from the coordination directory; stop the job's agents (ckptctl "
                  "stop) and start it again, to make new ones");
  life_seen_ = entry.has_value();
}

}  // namespace ckpt::agent
