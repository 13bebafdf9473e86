// A few threads for work that takes time: digests, touching fresh memory. Jobs run in order of submission.
//
// Thread-safe. The queue is bounded by what submits: chunks of running transfers and segments being made. Jobs must not
// throw and must end by themselves; the destructor runs what was submitted before it returns.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ckpt::agent {

class WorkerPool {
 public:
  explicit WorkerPool(unsigned threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void submit(std::function<void()> job);
  // Returns once no job waits or runs, those that jobs submitted included.
  void drain();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable ready_;
  std::condition_variable idle_;
  std::deque<std::function<void()>> jobs_;
  std::size_t running_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ckpt::agent
