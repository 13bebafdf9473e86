#include "persist/write_queue.hpp"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "base/thread.hpp"

namespace ckpt::persist {

// Memory that storage is using. If storage hangs, the loan lives on after the write has failed.
using Loan = std::shared_ptr<const void>;

struct WriteQueue::Shared {
  const WriteQueueOptions options;
  const FileSystemFactory make_files;
  const std::shared_ptr<RateLimiterClock> clock;

  mutable std::mutex mutex;
  WriteCounters counters;

  std::vector<std::weak_ptr<const Loan>> loans;  // of the last write; only the writing thread uses it

  template <class Count>
  void count(Count change) {
    const std::lock_guard lock(mutex);
    change(counters);
  }
};

// A thread with room for one waiting request.
class WriteQueue::Lane {
 public:
  struct Request {
    CheckpointId checkpoint;
    // Runs the request and fills in the outcome's results. Throws Failure.
    std::function<void(FileSystem&, WriteOutcome&)> work;
    Done done;
  };

  Lane(const char* name, std::shared_ptr<Shared> shared)
      : shared_(std::move(shared)), thread_(start_thread(name, [this] { run(); })) {}

  ~Lane() {
    cancel(true);
    thread_.join();
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void put(Request request) {
    std::optional<Request> superseded = std::move(request);
    {
      const std::lock_guard lock(mutex_);
      if (!waiting_ || waiting_->checkpoint <= superseded->checkpoint) std::swap(waiting_, superseded);
    }
    ready_.notify_one();
    if (!superseded) return;
    shared_->count([](WriteCounters& counters) { ++counters.skipped; });
    WriteOutcome outcome;
    outcome.kind = WriteOutcome::Kind::skipped;
    outcome.checkpoint = superseded->checkpoint;
    end(std::move(*superseded), outcome);
  }

  void cancel(bool for_good = false) {
    std::optional<Request> dropped;
    {
      const std::lock_guard lock(mutex_);
      std::swap(dropped, waiting_);
      ending_ = ending_ || for_good;
      stop_.request_stop();
    }
    ready_.notify_one();
    if (dropped) fail(std::move(*dropped), StorageError(ECANCELED, "cannot write " + folder_name_of(*dropped)));
  }

 private:
  static std::string folder_name_of(const Request& request) { return folder_name(request.checkpoint.iteration()); }

  // Releases the request's memory before it reports the outcome.
  static void end(Request request, const WriteOutcome& outcome) {
    request.work = nullptr;
    if (request.done) request.done(outcome);
  }

  void fail(Request request, const Failure& failure, double milliseconds = 0) {
    shared_->count([](WriteCounters& counters) { ++counters.failed; });
    WriteOutcome outcome;
    outcome.kind = WriteOutcome::Kind::failed;
    outcome.checkpoint = request.checkpoint;
    outcome.status = failure.status();
    outcome.sentence = failure.what();
    outcome.milliseconds = milliseconds;
    end(std::move(request), outcome);
  }

  // The next request, with a fresh stop token.
  std::optional<Request> take() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [&] { return ending_ || waiting_; });
    if (ending_) return std::nullopt;
    if (stop_.stop_requested()) {
      stop_ = std::stop_source();
      files_.reset();
    }
    return std::exchange(waiting_, std::nullopt);
  }

  void serve(Request request) {
    WriteOutcome outcome;
    outcome.checkpoint = request.checkpoint;
    const auto begin = Clock::now();
    try {
      if (!files_) {
        FileSystemOptions options = shared_->options.files;
        options.stop = stop_.get_token();
        files_ = shared_->make_files(options);
      }
      request.work(*files_, outcome);
      outcome.milliseconds = milliseconds_between(begin, Clock::now());
      end(std::move(request), outcome);
    } catch (const Failure& failure) {
      fail(std::move(request), failure, milliseconds_between(begin, Clock::now()));
    } catch (const std::exception& error) {
      fail(std::move(request), Failure(CKPT_ERR_INTERNAL, std::string("writing to storage failed: ") + error.what()));
    }
  }

  void run() {
    while (auto request = take()) serve(std::move(*request));
    files_.reset();
  }

  const std::shared_ptr<Shared> shared_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::optional<Request> waiting_;
  bool ending_ = false;
  std::stop_source stop_;
  std::unique_ptr<FileSystem> files_;  // the thread's own
  std::thread thread_;                 // last: it uses the others
};

WriteQueue::WriteQueue(FileSystemFactory make_files, const WriteQueueOptions& options,
                       std::shared_ptr<RateLimiterClock> clock)
    : shared_(new Shared{
          options, std::move(make_files), clock ? std::move(clock) : std::make_shared<RateLimiterClock>(), {}, {}, {}}),
      writes_(std::make_unique<Lane>("ckpt-persist", shared_)),
      commits_(std::make_unique<Lane>("ckpt-commit", shared_)) {}

WriteQueue::~WriteQueue() = default;

// Throws if an earlier write still holds memory. Otherwise lends the memory of `pieces` to storage: notes when storage
// no longer uses it. So at most one write holds memory if storage hangs. If each further write could hold more, the
// node would run out of slots.
void WriteQueue::lend(Shared& shared, FileSystem& files, std::vector<Piece>& pieces) {
  files.file_size(shared.options.job);  // any call, in which the file system notices operations that have ended
  const auto is_out = [](const auto& loan) { return !loan.expired(); };
  if (std::any_of(shared.loans.begin(), shared.loans.end(), is_out)) {
    throw Failure(CKPT_ERR_TIMEOUT, "an earlier write to " + files.label(shared.options.job) +
                                        " has not ended, and its memory is still in use; so nothing more is written to "
                                        "this storage; check whether the storage hangs");
  }
  shared.loans.clear();
  for (Piece& piece : pieces) {
    const auto loan = std::make_shared<const Loan>(std::move(piece.owner));
    shared.loans.push_back(loan);
    piece.owner = loan;
  }
}

void WriteQueue::write(CheckpointId checkpoint, std::vector<Piece> pieces, Done done, Discarded discarded) {
  const auto work = [shared = shared_, pieces = std::move(pieces), discarded = std::move(discarded)](
                        FileSystem& files, WriteOutcome& outcome) mutable {
    lend(*shared, files, pieces);
    RateLimiter rate_limiter(shared->options.bytes_per_second, *shared->clock);
    CheckpointWriter writer(files, shared->options.job, shared->options.node, rate_limiter);
    writer.discard(discarded.checkpoint, discarded.shards);
    for (const Piece& piece : pieces) {
      outcome.shards.push_back(writer.write(piece));
      outcome.bytes += outcome.shards.back().data_bytes;
    }
    shared->count([&](WriteCounters& counters) {
      ++counters.written;
      counters.bytes += outcome.bytes;
    });
  };
  writes_->put({checkpoint, work, std::move(done)});
}

void WriteQueue::commit(CheckpointId checkpoint, std::uint32_t world_size, std::vector<std::string> shards,
                        std::set<CheckpointId> damaged, Done done) {
  const auto work = [shared = shared_, checkpoint, world_size, shards = std::move(shards),
                     damaged = std::move(damaged)](FileSystem& files, WriteOutcome& outcome) {
    RateLimiter rate_limiter(0, *shared->clock);
    CheckpointWriter(files, shared->options.job, shared->options.node, rate_limiter)
        .commit(checkpoint, world_size, shards);
    shared->count([](WriteCounters& counters) { ++counters.committed; });
    const WriteQueueOptions& options = shared->options;
    try {
      for (const std::string& problem : prune_checkpoints(files, options.job, options.retention, damaged).problems)
        outcome.sentence += (outcome.sentence.empty() ? "" : "; ") + problem;
    } catch (const Failure& failure) {  // only the removal failed; the checkpoint is complete
      outcome.sentence = failure.what();
    }
  };
  commits_->put({checkpoint, work, std::move(done)});
}

void WriteQueue::cancel() {
  writes_->cancel();
  commits_->cancel();
}

WriteCounters WriteQueue::counters() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->counters;
}

}  // namespace ckpt::persist
