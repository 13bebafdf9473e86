#include "persist/read_queue.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/thread.hpp"
#include "kernels/digest.hpp"

namespace ckpt::persist {
namespace {

constexpr std::uint64_t part_min_bytes = std::uint64_t{16} << 20;

ReadOutcome outcome_of(const Failure& failure) { return {failure.status(), failure.what(), 0}; }

const ReadOutcome called_off = {CKPT_DISCARDED, "reading from storage was cancelled", 0};

template <class Call>
ReadOutcome attempt(Call call) {
  const auto begin = Clock::now();
  ReadOutcome outcome;
  try {
    call();
  } catch (const Failure& failure) {
    outcome = outcome_of(failure);
  } catch (const std::exception& error) {
    outcome = {CKPT_ERR_INTERNAL, bug_text(std::string("reading from storage failed: ") + error.what()), 0};
  }
  outcome.milliseconds = milliseconds_between(begin, Clock::now());
  return outcome;
}

// A read whose parts several threads read. The thread that ends the last part calls `done`.
struct SharedRead {
  std::mutex mutex;
  std::size_t left = 0;
  ReadOutcome outcome;
  std::function<void(const ReadOutcome&)> done;

  void end_part(const ReadOutcome& part) {
    {
      const std::lock_guard lock(mutex);
      if (outcome.ok()) outcome = {part.status, part.sentence, outcome.milliseconds};
      outcome.milliseconds = std::max(outcome.milliseconds, part.milliseconds);
      if (--left != 0) return;
    }
    done(outcome);
  }
};

}  // namespace

struct ReadQueue::State {
  // A thread calls `run` with its source, or with null and the reason why it has none.
  struct Task {
    std::function<void(CheckpointSource*, const ReadOutcome&)> run;
  };

  CheckpointSourceFactory make_source;
  Limits limits;

  std::mutex mutex;
  std::condition_variable ready;
  std::deque<Task> tasks;
  std::size_t lists = 0;  // so many tasks at the front list checkpoints
  bool ending = false;
  std::stop_source stop;
  std::vector<std::thread> threads;

  void put(std::vector<Task> added, bool is_list = false) {
    bool full = false;
    {
      const std::lock_guard lock(mutex);
      full = tasks.size() + added.size() > limits.requests_max;
      if (!full) {
        const auto at = is_list ? tasks.begin() + static_cast<std::ptrdiff_t>(lists) : tasks.end();
        tasks.insert(at, std::make_move_iterator(added.begin()), std::make_move_iterator(added.end()));
        lists += is_list ? 1 : 0;
      }
    }
    if (!full) {
      ready.notify_all();
      return;
    }
    for (const Task& task : added)
      task.run(nullptr,
               {CKPT_ERR_NO_SPACE, "too many reads from storage wait already; check whether the storage hangs", 0});
  }

  void cancel(bool for_good) {
    std::deque<Task> dropped;
    {
      const std::lock_guard lock(mutex);
      dropped.swap(tasks);
      lists = 0;
      ending = ending || for_good;
      stop.request_stop();
      if (!for_good) stop = std::stop_source();
    }
    ready.notify_all();
    for (const Task& task : dropped) task.run(nullptr, called_off);
  }

  // The body of each thread. Makes the thread's source for the first task, and a new one after a cancel().
  void run() {
    std::unique_ptr<CheckpointSource> source;
    std::stop_token made_with;
    for (;;) {
      Task task;
      std::stop_token current;
      {
        std::unique_lock lock(mutex);
        ready.wait(lock, [&] { return ending || !tasks.empty(); });
        if (ending) return;
        task = std::move(tasks.front());
        tasks.pop_front();
        lists -= lists > 0 ? 1 : 0;
        current = stop.get_token();
      }
      ReadOutcome made;
      if (!source || made_with != current) {
        source.reset();
        made_with = current;
        made = attempt([&] { source = make_source(current); });
      }
      task.run(source.get(), made);
    }
  }
};

ReadQueue::ReadQueue(CheckpointSourceFactory make_source, const Limits& limits) : state_(std::make_shared<State>()) {
  state_->make_source = std::move(make_source);
  state_->limits = limits;
  for (unsigned i = 0; i < std::max(limits.threads, 1u); ++i)
    state_->threads.push_back(start_thread("ckpt-read", [state = state_.get()] { state->run(); }));
}

ReadQueue::~ReadQueue() {
  state_->cancel(true);
  for (std::thread& thread : state_->threads) thread.join();
}

void ReadQueue::list(std::function<void(const ReadOutcome&, Listing)> done) {
  state_->put({{[done = std::move(done)](CheckpointSource* source, const ReadOutcome& made) {
                Listing listing;
                const auto outcome = source == nullptr ? made : attempt([&] { listing = source->list(); });
                done(outcome, std::move(listing));
              }}},
              true);
}

void ReadQueue::manifest(const std::string& shard, CheckpointId checkpoint,
                         std::function<void(const ReadOutcome&, arena::Manifest)> done) {
  state_->put({{[=, done = std::move(done)](CheckpointSource* source, const ReadOutcome& made) {
    arena::Manifest manifest;
    const auto outcome = source == nullptr ? made : attempt([&] { manifest = source->manifest(shard, checkpoint); });
    done(outcome, std::move(manifest));
  }}});
}

void ReadQueue::read(const std::string& shard, CheckpointId checkpoint, ByteRange range, std::byte* destination,
                     std::function<void(const ReadOutcome&)> done, const std::stop_token& stop) {
  // Parts begin at leaves, so that no leaf is read twice.
  const std::uint64_t share = range.size_bytes / std::max(state_->limits.threads, 1u) + 1;
  const std::uint64_t stored =
      (std::max(share, part_min_bytes) / kernels::leaf_size_bytes + 1) * kernels::leaf_size_bytes;
  std::vector<ByteRange> parts;
  for (std::uint64_t begin = 0; begin < range.size_bytes;) {
    const std::uint64_t into_leaf = (range.offset_bytes + begin) % kernels::leaf_size_bytes;
    const std::uint64_t size = std::min(stored - into_leaf, range.size_bytes - begin);
    parts.push_back({range.offset_bytes + begin, size});
    begin += size;
  }
  if (parts.empty()) parts.push_back(range);
  const auto shared = std::make_shared<SharedRead>();
  shared->left = parts.size();
  shared->done = std::move(done);
  std::vector<State::Task> tasks;
  for (const ByteRange& part : parts) {
    std::byte* const to = destination + (part.offset_bytes - range.offset_bytes);
    tasks.push_back({[=](CheckpointSource* source, const ReadOutcome& made) {
      if (stop.stop_requested()) return shared->end_part(called_off);
      shared->end_part(source == nullptr ? made : attempt([&] { source->read(shard, checkpoint, part, to); }));
    }});
  }
  state_->put(std::move(tasks));
}

void ReadQueue::cancel() { state_->cancel(false); }

}  // namespace ckpt::persist
